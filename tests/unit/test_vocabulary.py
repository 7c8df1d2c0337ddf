"""Identifiers are nouns and verbs of the field: participles that name nothing in particular are no names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "include/collector",
    "include/generator",
    "include/sandbox",
    "include/deltaworks",
    "benchmarks",
    "dags",
    "docker",
    "plugins",
    "spark_jobs",
)
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
WORDS = frozenset({"found", "each", "told", "known", "given", "asked", "wanted"})
COMPOUNDS = ("made_anew", "left_out", "health_gone", "given_up", "turn_desk")
#: Module and identifier, with the reason why it stays.
EXCEPTIONS = {
    ("include/deltaworks/alerts/notice.py", "told"): "a key of the kept state of an alert",
    ("include/deltaworks/events/inference/versions.py", "found"): "a key of the kept versions of a schema",
}


def snake_case(identifier: str) -> str:
    """`GivenUp`, `GIVEN_UP` and `_given_up` as `given_up`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().strip("_")


def is_offence(identifier: str) -> bool:
    name = snake_case(identifier)
    return name in WORDS or any(f"_{compound}_" in f"_{name}_" for compound in COMPOUNDS)


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything a module names: variables, parameters, attributes it sets, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def offences(path: Path) -> list[str]:
    """`line: identifier` of every name in a module that says nothing, but for the exceptions."""
    module = str(path.relative_to(ROOT))
    return [
        f"line {line}: {name}"
        for line, name in sorted(identifiers(ast.parse(path.read_text())))
        if is_offence(name) and (module, name) not in EXCEPTIONS
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_identifier_names_what_it_holds(path: Path) -> None:
    names = offences(path)

    assert not names, f"{path.relative_to(ROOT)} names nothing in particular; use the noun: {'; '.join(names)}"


@pytest.mark.parametrize(("module", "identifier"), EXCEPTIONS, ids=lambda part: part)
def test_an_exception_is_still_in_its_module(module: str, identifier: str) -> None:
    tree = ast.parse((ROOT / module).read_text())

    assert is_offence(identifier)
    assert identifier in {name for _, name in identifiers(tree)}


@pytest.mark.parametrize(
    "statement",
    [
        "found = 1",
        "_found: int = 1",
        "FOUND = 1",
        "def each(): ...",
        "def look(known): ...",
        "self.told = 1",
        "[given for given in rows]",
        "lambda asked: asked",
        "import rows as wanted",
        "class GivenUp: ...",
        "class WriteTurnDesk: ...",
        "rows_left_out = 1",
        "try: ...\nexcept OSError as found: ...",
        "with lake as found: ...",
        "if found := look(): ...",
        "match rows:\n case [*found]: ...",
        "match rows:\n case {'a': 1, **found}: ...",
    ],
)
def test_an_empty_word_is_seen_wherever_a_name_is_given(statement: str) -> None:
    assert [name for _, name in identifiers(ast.parse(statement)) if is_offence(name)]


@pytest.mark.parametrize(
    "statement", ["rows = found", "not_found = 1", "left_outer = 1", "look(known=1)", "row.each()"]
)
def test_a_word_within_a_noun_or_a_name_of_others_is_none_of_its_own(statement: str) -> None:
    assert not [name for _, name in identifiers(ast.parse(statement)) if is_offence(name)]
