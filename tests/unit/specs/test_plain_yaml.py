"""The fast YAML parser agrees with the full one, and rejects what it does not support."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.specs.bounded_yaml import MAX_DEPTH, MAX_VALUES, load_yaml
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import to_plain
from deltaworks.specs.plain_yaml import MAX_EVENTS, MAX_NESTING, NotPlainYamlError, load_plain_yaml
from tests.examples import examples

DECLARATIONS = sorted((PROJECT_ROOT / "include").glob("*/**/*.yaml"))


def parse_plain(data: bytes) -> Any:
    """What the parser in C makes of it; Ellipsis where it leaves it to the other one."""
    try:
        return load_plain_yaml(data)
    except NotPlainYamlError:
        return ...


def typed(value: Any) -> Any:
    """The value with the types of its parts: 1, 1.0 and true are not one."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    kind = next(kind for kind in (bool, int, float, str, type(None)) if isinstance(value, kind))
    return (kind, value)


@pytest.mark.parametrize("path", DECLARATIONS, ids=lambda path: str(path.relative_to(PROJECT_ROOT / "include")))
def test_every_spec_of_this_project_is_plain_yaml(path: Any) -> None:
    data = path.read_bytes()

    assert typed(load_plain_yaml(data)) == typed(to_plain(load_yaml(data, kind="rt")))


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1", "a: *x", "a: !!str 1", "a: 2024-01-01", "a: 0x1f", "a: 1_000", "a: 012", "a: 0o17", "a: 1e3",
        "a: .inf", "a: 1:30", "a: +1", "a: 1.", "a: 9999999999999999999", "<<: {a: 1}", "1: a", "true: a", "? [a]\n: b",
        "? {a: b}\n: c", "a: 1\na: 2", "a: [", "a: b: c", "a: 1\n---\nb: 2", "%YAML 1.1\n---\na: on", "", "a:\t1",
        "a: \x7f", "a: \u2028", "a: =", "a: 1\r\nb: 2", "[" * 60 + "]" * 60, "{a: " * 60 + "}" * 60,
        "a: [" + "x, " * 60_000 + "]",
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_invalid_or_complex_yaml_is_left_to_the_full_parser(text: str) -> None:
    with pytest.raises(NotPlainYamlError):
        load_plain_yaml(text.encode())


def test_bytes_that_are_not_utf_8_are_left_to_the_full_parser() -> None:
    with pytest.raises(NotPlainYamlError):
        load_plain_yaml(b"a: \xff")


@pytest.mark.parametrize("text", ["? " * 100_000, "[" * 1_000_000, "- " * 100_000, "{a: " * 500_000, "*a " * 1_000_000])
def test_unbounded_nesting_is_immediately_left_to_the_full_parser(text: str) -> None:
    with pytest.raises(NotPlainYamlError):
        load_plain_yaml(text.encode())


WORDS = """
    a b1 64MiB 1 -1 0 007 1.5 1.50 true off yes null ~ on No 1e3 0x1F 12:30 2024-01-01 env:A s3://b/c 'q' "d" '' "" =
    << _1 +1 .5 5. 0b1 1_0 08 1h 3GB 5d 1x 7t É ü? a#b a: -a ?a |x >x @a `a %a !a &a *a [] {} [1] {a:1}
"""


def test_its_limits_are_below_those_of_the_full_parser() -> None:
    assert (MAX_NESTING < MAX_DEPTH, MAX_EVENTS < MAX_VALUES) == (True, True)


words = st.sampled_from(WORDS.split())
scalars = words | st.text("ab01-:_.,#'\"\\ ~é\n?!&*|>%@`", max_size=12)
lines = st.builds(
    lambda indent, bullet, key, value, end: f"{' ' * indent}{bullet}{key}{value}{end}",
    st.integers(0, 3),
    st.sampled_from(["", "- "]),
    st.sampled_from(["", "a: ", "b: ", "c:", "'d': ", "e : ", "1: "]),
    scalars,
    st.sampled_from(["", " ", " # c", " |", " >", " |-"]),
)


@settings(max_examples=examples(400))
@given(st.lists(lines, max_size=6).map("\n".join) | st.text("ab:-[]{}?*&!|>'\"#\n ,~<1.\\", max_size=40))
@example("a: |\n  x\n\n  y\n")
@example('a: "x\\\n  y\\u00e9\\/"')
@example("a: x\n  y\n\n  z")
@example("a: 'it''s'\nb: >-\n  x\n  y\n   z")
def test_both_parsers_agree_on_plain_yaml(text: str) -> None:
    plain = parse_plain(text.encode())

    if plain is not ...:
        assert typed(plain) == typed(to_plain(load_yaml(text.encode(), kind="rt")))
