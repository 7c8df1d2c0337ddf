"""docs/explanation/security.md names a test for every protection, and every test it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation/security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(section: str) -> list[list[str]]:
    """The cells of every table row of a section, without heads."""
    body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert body is not None
    lines = re.findall(r"\n\|[-|]+\|\n((?:\|.*\|\n)+)", body[1])
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in lines for line in table.splitlines()]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing_tests(text: str) -> list[str]:
    return [
        f"{file}::{name}"
        for file, name in NAMED.findall(text)
        if not (ROOT / file).is_file() or name not in functions_of(file)
    ]


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(TEXT) == []
    named = ["tests/unit/none.py::test_none", "tests/unit/test_security.py::test_none"]
    assert missing_tests(" ".join(f"`{name}`" for name in named)) == named


def test_every_protection_has_a_test() -> None:
    protections = rows("Protections")

    assert len(protections) >= 30
    assert [row[1] for row in protections if len(row) != 3 or not NAMED.search(row[2])] == []


def test_every_action_says_what_each_role_may() -> None:
    actions = rows("Who may do what")

    assert len(actions) >= 8
    for action, *roles, by_hand in actions:
        assert len(roles) == 4, action
        assert all(role.split(",")[0] in {"yes", "no"} for role in roles), action
        assert by_hand, action
        # No role loses what a lower one has.
        allowed = [role.startswith("yes") for role in roles]
        assert allowed == sorted(allowed), action


def test_everything_that_is_not_trusted_and_everything_that_is_has_a_row() -> None:
    named = " ".join(row[0] for row in rows("What is trusted"))

    for word in ("producers", "objects", "messages", "specs", "operators", "users", "workers"):
        assert word in named
