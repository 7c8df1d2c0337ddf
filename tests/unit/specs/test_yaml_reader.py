"""YAML is read by the rules of YAML 1.2, with lines; invalid, too deep or too large documents are rejected quickly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.specs import yaml_reader
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import read_yaml
from deltaworks.specs.overrides import overrides_from_variables
from deltaworks.specs.yaml_reader import MAX_DEPTH, InvalidYamlError, dump_yaml, load_yaml
from tests.examples import examples

DECLARATIONS = sorted((PROJECT_ROOT / "include").glob("*/**/*.yaml"))
BOMB = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
NESTED = "- &a0 x\n" + "\n".join(f"- &a{n} [*a{n - 1}]" for n in range(1, 200))
#: Text and the line that is wrong in it.
WRONG = {
    "keys that are mappings": ("a: 1\n" + "? " * 60, 2),
    "a key that is a list": ("a: 1\n? [b]\n: c", 2),
    "a key that is its own mapping": ("&a {? *a : 1}", 1),
    "lists in lists": ("a: 1\nb: " + "[" * 3_000, 2),
    "mappings in mappings": ("a: 1\nb: " + "{a: " * 3_000, 2),
    "lists on one line": ("- " * 3_000, 1),
    "aliases that make billions of values": (BOMB, 6),
    "aliases in aliases": (NESTED, 101),
    "merges of many keys": (f"a: &a {{{', '.join(f'k{n}: 1' for n in range(500))}}}\nb:\n  <<: [{'*a, ' * 500}]", 3),
    "an alias of a text as a merge": ("a: &a x\nb:\n  <<: *a", 3),
    "no UTF-8": (b"a: 1\nb: \xff", 2),
    "a character that no text has": ("a: 1\nb: \x7f", 2),
    "a line break of YAML 1.1": ("a: 1\n# b\u2028c: 2", 2),
    "a date that is none": ("a: 2001-99-99", 1),
    "a number of thousands of digits": (f"a: {'9' * 5_000}", 1),
    "another type than the tag says": ("a: !!int x", 1),
    "a tag": ("a: 1\nb: !secret x", 2),
    "a key twice, once in quotes": ("a: 1\n'a': 2", 2),
    "two documents": ("a\n--- b", 2),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), WRONG.values(), ids=WRONG)
def test_unreadable_files_are_rejected_with_file_and_line(text: str | bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(ConfigError, match=f"{path.name}:{line}: ") as rejection:
        read_yaml(path)

    assert rejection.value.condition == "SPEC_NOT_YAML"
    assert len(rejection.value.message) < 600


@pytest.mark.parametrize("text", ["? " * 100_000, "[" * 1_000_000, "- " * 100_000, "{a: " * 500_000, "*a " * 1_000_000])
def test_unbounded_nesting_is_rejected_before_the_parser_descends(text: str) -> None:
    with pytest.raises(InvalidYamlError):
        load_yaml(text.encode())


def test_a_recursive_value_is_rejected() -> None:
    with pytest.raises(InvalidYamlError, match="contains itself"):
        load_yaml(b"a: &a [*a]")


def test_the_maximum_nesting_is_read() -> None:
    depth = MAX_DEPTH - 1

    document = load_yaml(b"[" * depth + b"]" * depth).values

    for _ in range(depth - 1):
        (document,) = document
    assert document == []


def test_aliases_of_few_values_are_read() -> None:
    text = b"a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: {x: 3, <<: [*a, {z: 4}]}"

    assert load_yaml(text).values == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 3, "z": 4}}


def test_an_alias_is_the_last_value_of_its_anchor() -> None:
    assert load_yaml(b"a: &x 1\nb: &x 2\nc: *x\n*x : 3").values == {"a": 1, "b": 2, "c": 2, "2": 3}


def test_every_value_has_its_line() -> None:
    document = load_yaml(b"a: &a\n  b:\n  - c: 1\n  -\n    c: 2\n'1': {<<: *a, d: 3}\n")

    assert document.line_of(("a", "b")) == (2, ("a", "b"))
    assert document.line_of(("a", "b", 0, "c")) == (3, ("a", "b", 0, "c"))
    assert document.line_of(("a", "b", 1)) == (5, ("a", "b", 1))
    assert document.line_of(("1", "d")) == (6, ("1", "d"))
    assert document.line_of(("1", "b", 0)) == (3, ("1", "b", 0)), (
        "the line of a merged key is the line it is written on"
    )
    assert document.line_of(("a", "x", "y")) == (1, ("a", "x")), "a missing key has the line of its parent"
    assert document.line_of(("a", "b", 2)) == (2, ("a", "b", 2))


@pytest.mark.parametrize("text", ["? " * 60, "&a [*a]", "[" * 3_000, "2001-99-99", "\x7f"])
def test_variables_are_validated_like_files(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__shop__owner", text)

    with pytest.raises(ConfigError, match="DELTAWORKS_SET__pipelines__shop__owner") as rejection:
        overrides_from_variables("pipelines", "shop")

    assert rejection.value.condition == "OVERRIDE_INVALID"


def outcome(data: bytes) -> tuple[str, int]:
    """What a text says, or what is wrong with it; with the line of that, 0 where nothing is."""
    try:
        return repr(load_yaml(data).values), 0
    except InvalidYamlError as rejection:
        return rejection.problem, rejection.line


@given(st.binary(max_size=40) | st.text("ab:-[]{}?*&!|>'\"#\n\t ,~<1.", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    (messages, line) = outcome(data)

    assert messages
    assert 0 <= line <= 1 + len(data)


def typed(value: Any) -> Any:
    """The value with the types of its parts: 1, 1.0 and true are not one, and NaN equals itself."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return (type(value), repr(value))


#: The table in chapter 10.3.2 of YAML 1.2, and dates.
CORE_SCHEMA: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (r"null|Null|NULL|~|", lambda text: None),
    (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    (r"[-+]?[0-9]+", lambda text: int(text, 10)),
    (r"0o[0-7]+", lambda text: int(text[2:], 8)),
    (r"0x[0-9a-fA-F]+", lambda text: int(text[2:], 16)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?(\.inf|\.Inf|\.INF)", lambda text: -math.inf if text.startswith("-") else math.inf),
    (r"\.nan|\.NaN|\.NAN", lambda text: math.nan),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", lambda text: date(*map(int, text.split("-")))),
)


def core_schema(text: str) -> Any:
    """The value of a plain scalar, by one rule after the other."""
    return next((read(text) for rule, read in CORE_SCHEMA if re.fullmatch(rule, text)), text)


WORDS = """
    a b1 64MiB 1 -1 0 007 0777 1.5 1.50 true True off yes null ~ on No y n 1e3 0x1F 0o17 12:30 1:30:00 2024-01-01 env:A
    s3://b/c = _1 +1 .5 5. 5.e3 0b1 1_0 08 1h 3GB 5d 1x 7t -.inf .INF .nan +.5 1e 2024-1-1 2024-01-01T00:00:00Z 0o9 -0x1
    012.5 É Null NULL nUll TRUE tRue
"""
SPECIAL = "'q' \"d\" '' \"\" << a#b a: -a ?a |x >x @a `a %a !a &a *a [] {} [1] {a:1}"
SCALARS = WORDS.split()


@settings(max_examples=examples(400))
@given(st.sampled_from(SCALARS) | st.from_regex(r"[-+]?[0-9.eEoxXa-fINn_]{1,8}", fullmatch=True))
def test_plain_scalars_follow_the_core_schema(text: str) -> None:
    (value,) = load_yaml(f"a: {text}\n".encode()).values.values()

    assert typed(value) == typed(core_schema(text))
    assert load_yaml(f"a: '{text}'\n".encode()).values == {"a": text}


LINES = st.builds(
    lambda indent, bullet, key, value, end: f"{' ' * indent}{bullet}{key}{value}{end}",
    st.integers(0, 3),
    st.sampled_from(["", "- "]),
    st.sampled_from(["", "a: ", "b: ", "c:", "'d': ", "e : ", "1: ", "<<: "]),
    st.sampled_from(SCALARS + SPECIAL.split()) | st.text("ab01-:_.,#'\"\\ ~é\n?!&*|>%@`", max_size=12),
    st.sampled_from(["", " ", " # c", " |", " >", " |-"]),
)


def in_python(data: bytes) -> Any:
    """What the parser in Python reads; Ellipsis if it rejects the text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_reader, "CParser", None)
        return read_or_none(data)


def read_or_none(data: bytes) -> Any:
    try:
        return load_yaml(data).values
    except InvalidYamlError:
        return ...


@settings(max_examples=examples(400))
@given(st.lists(LINES, max_size=6).map("\n".join) | st.text("ab:-[]{}?*&!|>'\"#\n ,~<1.\\", max_size=40))
@example("a: |\n  x\n\n  y\n")
@example('a: "x\\\n  y\\u00e9\\/"')
@example("a: x\n  y\n\n  z")
@example("a: 'it''s'\nb: >-\n  x\n  y\n   z")
def test_both_parsers_of_pyyaml_agree(text: str) -> None:
    fast, slow = read_or_none(text.encode()), in_python(text.encode())

    if slow is not ...:
        assert typed(fast) == typed(slow)


@pytest.mark.parametrize("path", DECLARATIONS, ids=lambda path: str(path.relative_to(PROJECT_ROOT / "include")))
def test_every_spec_of_this_project_is_read_alike_without_libyaml(path: Path) -> None:
    assert typed(load_yaml(path.read_bytes()).values) == typed(in_python(path.read_bytes())) != ...


KEYS = st.sampled_from(SCALARS) | st.text("ab: -#")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(SCALARS) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(200))
@given(VALUES)
def test_written_yaml_is_read_back(value: Any) -> None:
    assert typed(load_yaml(dump_yaml(value).encode()).values) == typed(value)


def test_written_texts_are_texts_in_yaml_1_1_too() -> None:
    words = ["yes", "on", "012", "1:30", "1e3", "0o17", "2024-01-01", "null", "1_000"]

    assert yaml.safe_load(dump_yaml(words)) == words
