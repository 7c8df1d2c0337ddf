"""Each page of docs/explanation/decisions has the same parts, is in the index, and can be repeated as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def parts(page: Path) -> dict[str, str]:
    """The text below each second-level heading."""
    _, *sections = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_every_part_and_fits_on_a_screen(page: Path) -> None:
    assert list(parts(page)) == PARTS
    assert all(text.strip() for text in parts(page).values())
    assert 30 <= len(page.read_text().splitlines()) <= 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_rests_on_figures_and_names_the_command_that_repeats_them(page: Path) -> None:
    assert len(re.findall(r"\d", parts(page)["Why"])) >= 5
    assert re.search(r"`make (?:bench|faults|integration|jars|lint)\b", parts(page)["How to measure"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_says_where_it_is_in_the_code(page: Path) -> None:
    assert re.search(r"`(?:deltaworks\.|include/|pyproject)", parts(page)["Code"])


def test_the_index_names_every_decision() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", (FOLDER / "README.md").read_text()))

    assert linked == {page.name for page in PAGES}
