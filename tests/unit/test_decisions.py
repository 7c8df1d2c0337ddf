"""Each page of docs/explanation/decisions has the same parts, is in the index, and can be repeated as it says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "explanation" / "decisions"
PAGES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "README.md"})
PARTS = [
    "Decision",
    "Why",
    "Alternatives considered",
    "Costs",
    "When to revisit",
    "Code",
    "How to measure",
]


def parts(text: str) -> dict[str, str]:
    """The text below each second-level heading."""
    _, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


def missing_parts(text: str) -> list[str]:
    """The parts that a decision lacks, has empty, or has in another order."""
    found = parts(text)
    empty = [name for name, body in found.items() if not body.strip()]
    return empty or ([] if list(found) == PARTS else sorted(set(PARTS) ^ set(found)) or ["another order"])


def test_a_decision_has_every_part() -> None:
    assert {page.stem: missing for page in PAGES if (missing := missing_parts(page.read_text()))} == {}
    assert missing_parts("# One\n\n## Decision\n\nYes.\n") == sorted(set(PARTS) - {"Decision"})
    assert missing_parts("# One\n\n## Decision\n") == ["Decision"]


def unsupported_parts(text: str) -> list[str]:
    """The parts without what they rest on: figures, a command that repeats them, and a place in the code."""
    found = parts(text)
    has_figures = len(re.findall(r"\d", found["Why"])) >= 5
    has_command = re.search(r"`make (?:bench|faults|integration|jars|lint)\b", found["How to measure"])
    has_place = re.search(r"`(?:deltaworks\.|include/|pyproject)", found["Code"])
    supported = {"Why": has_figures, "How to measure": has_command, "Code": has_place}
    return [name for name, support in supported.items() if not support]


def test_a_decision_rests_on_figures_that_can_be_repeated_and_says_where_it_is_in_the_code() -> None:
    assert {page.stem: found for page in PAGES if (found := unsupported_parts(page.read_text()))} == {}
    assert unsupported_parts("## Why\nFast.\n## Code\nThere.\n## How to measure\n`make bench`\n") == ["Why", "Code"]


def test_the_index_names_every_decision() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", (FOLDER / "README.md").read_text()))

    assert linked == {page.name for page in PAGES}
