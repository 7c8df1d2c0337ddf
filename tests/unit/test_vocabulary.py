"""Names and sentences use the terms of the field.

Identifiers hold no participles as nouns, and docstrings, comments and docs none of the phrases that make a reader stop.
Where a listed word is the right one, `vocabulary_allowed.yaml` allows it by place and count; that list only shrinks.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.code_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path(__file__).with_name("vocabulary_allowed.yaml")
CODE_FOLDERS = (
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
#: Participles and adverbs that name nothing, as a complete identifier or as its last part (`rows_found`).
NOT_NOUNS = frozenset(
    {
        *("anew", "apart", "asked", "beside", "each", "found", "gathered", "given", "gone", "kept", "known", "left"),
        *("made", "meant", "seen", "taken", "told", "wanted", "whole"),
    }
)
#: Words that are in no identifier at all, in whatever part.
NOT_IN_NAMES = frozenset({"anew", "beside", "nobody", "told", "whatever", "whoever"})
PHRASES = (
    "anew",
    "are of",
    "behind it",
    "beside",
    "is of",
    "no more",
    "nobody",
    "of it",
    "says of",
    "whatever",
    "whoever",
)
_PHRASE = re.compile(r"\b(" + "|".join(PHRASES).replace(" ", r"\s+") + r")\b", re.IGNORECASE)


def snake_case(identifier: str) -> str:
    """`GivenUp`, `GIVEN_UP` and `_given_up` as `given_up`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().strip("_")


def is_offence(identifier: str) -> bool:
    parts = snake_case(identifier).split("_")
    return parts[-1] in NOT_NOUNS or not NOT_IN_NAMES.isdisjoint(parts)


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that a module gives: variables, parameters, attributes it sets, functions, classes, aliases."""
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def phrases(text: str) -> Iterator[str]:
    """The listed phrases in a text, in lower case."""
    for match in _PHRASE.finditer(text):
        yield re.sub(r"\s+", " ", match[1].lower())


def prose_of(source: str, tree: ast.AST) -> Iterator[str]:
    """The docstrings and the comments of a module."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def without_code(markdown: str) -> str:
    """A page without its code blocks and inline code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.DOTALL)


def code_modules() -> Iterator[Path]:
    for folder in CODE_FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def documents() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
    yield from sorted(ROOT.glob("docs/**/*.md"))
    yield from sorted(ROOT.glob("include/**/*.md"))


@cache
def offences() -> dict[str, dict[str, int]]:
    """How often each word or phrase stands in each place, as `vocabulary_allowed.yaml` lists it."""
    counts: dict[str, Counter[str]] = {}

    def count(path: Path, words: Iterator[str]) -> None:
        if found_here := Counter(words):
            counts.setdefault(str(path.relative_to(ROOT)), Counter()).update(found_here)

    for path in code_modules():
        tree = tree_of(path)
        count(path, (name for name in identifiers(tree) if is_offence(name)))
        # Few modules have a listed phrase at all, and reading the comments takes longer than parsing.
        if _PHRASE.search(source := path.read_text()):
            count(path, (phrase for text in prose_of(source, tree) for phrase in phrases(text)))
    for path in documents():
        count(path, phrases(without_code(path.read_text())))
    return {place: dict(sorted(words.items())) for place, words in sorted(counts.items())}


def test_names_and_sentences_hold_no_listed_word_but_those_allowed() -> None:
    allowed = yaml.safe_load(ALLOWED.read_text()) or {}

    added = [
        f"{place}: {word} x{number}, allowed {allowed.get(place, {}).get(word, 0)}"
        for place, words in offences().items()
        for word, number in words.items()
        if number > allowed.get(place, {}).get(word, 0)
    ]

    assert added == [], "use the term of the field (CONTRIBUTING.md)"


def test_the_list_of_allowed_words_holds_none_that_is_used_less() -> None:
    present = offences()

    unused = [
        f"{place}: {word} x{number}, used {present.get(place, {}).get(word, 0)}"
        for place, words in (yaml.safe_load(ALLOWED.read_text()) or {}).items()
        for word, number in words.items()
        if number > present.get(place, {}).get(word, 0)
    ]

    assert unused == [], "take them from vocabulary_allowed.yaml"


@pytest.mark.parametrize(
    "statement",
    [
        "found = 1",
        "_found: int = 1",
        "FOUND = 1",
        "rows_found = 1",
        "def each(): ...",
        "def look(known): ...",
        "self.told = 1",
        "[given for given in rows]",
        "lambda asked: asked",
        "import rows as wanted",
        "class RowsKept: ...",
        "class BesideStream: ...",
        "try: ...\nexcept OSError as found: ...",
        "with lake as found: ...",
        "if found := look(): ...",
        "match rows:\n case [*found]: ...",
        "match rows:\n case {'a': 1, **found}: ...",
    ],
)
def test_a_listed_word_is_seen_wherever_a_name_is_given(statement: str) -> None:
    assert [name for name in identifiers(ast.parse(statement)) if is_offence(name)]


@pytest.mark.parametrize(
    "statement", ["rows = found", "left_outer = 1", "look(known=1)", "row.each()", "known_ids = 1"]
)
def test_a_word_within_a_noun_or_a_name_of_a_library_is_no_offence(statement: str) -> None:
    assert not [name for name in identifiers(ast.parse(statement)) if is_offence(name)]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Reads the table anew.", "anew"),
        ("Nobody reads it.", "nobody"),
        ("There is no\n  more.", "no more"),
        ("the one that is of the table", "is of"),
    ],
)
def test_a_listed_phrase_is_seen_in_any_case_and_across_lines(text: str, phrase: str) -> None:
    assert list(phrases(text)) == [phrase]


def test_docstrings_comments_and_prose_are_read_and_code_is_not() -> None:
    source = 'def read():\n    """Reads anew."""\n    # beside the table\n    return "whatever"\n'

    assert [phrase for text in prose_of(source, ast.parse(source)) for phrase in phrases(text)] == ["anew", "beside"]
    assert list(phrases(without_code("Read `anew`.\n```\nbeside\n```\nwhoever"))) == ["whoever"]
