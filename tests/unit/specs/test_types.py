"""The type grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.specs.types import PRIMITIVES, Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type
from deltaworks.tables.arrow_types import arrow_type

FIELD_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(Decimal, st.just(precision), st.integers(0, precision))
)


def nested(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    fields = st.lists(st.tuples(FIELD_NAMES, inner), min_size=1, max_size=4, unique_by=lambda field: field[0])
    return st.one_of(st.builds(Array, inner), st.builds(Map, inner), st.builds(Struct, fields.map(tuple)))


TYPES = st.recursive(st.one_of(st.sampled_from(PRIMITIVES).map(Primitive), DECIMALS), nested, max_leaves=8)


@given(TYPES)
def test_a_serialized_type_parses_to_itself(kind: ColumnType) -> None:
    assert parse_type(str(kind)) == kind


@given(TYPES)
def test_white_space_does_not_matter(kind: ColumnType) -> None:
    spaced = "  ".join(str(kind).replace("<", " < ").replace(">", " > ").replace(",", " , ").split())

    assert parse_type(spaced) == kind


@given(TYPES)
def test_every_type_has_an_arrow_type(kind: ColumnType) -> None:
    assert arrow_type(kind) == arrow_type(str(kind))


@given(st.text("abcdefghijklmnop<>(),: 0123456789_$", max_size=30))
def test_any_other_text_only_raises_an_invalid_yaml_error(text: str) -> None:
    try:
        kind = parse_type(text)
    except ValueError:
        return
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(("written", "kind"), [("BIGINT", "long"), ("bool", "boolean"), ("integer", "int")])
def test_synonyms_become_one_name(written: str, kind: str) -> None:
    assert str(parse_type(written)) == kind


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("", "ends too early"),
        ("array<int", "ends too early"),
        ("int int", "unexpected 'int' after the type"),
        ("array<" * 1_000 + "int" + ">" * 1_000, "nested more than 64 levels"),
        ("map<int,string>", "map keys must be strings, as in JSON"),
        ("decimal(39,2)", "a precision of 1 to 38"),
        ("decimal(4,5)", "a scale of 0 to its precision"),
        ("decimal(a,b)", "expected a number, found 'a'"),
        ("struct<a: int, a: long>", "'a' is invalid or repeated"),
        ("struct<1: int>", "'1' is invalid or repeated"),
        ("struct<a: int; b: int>", "unexpected character"),
        ("struct<a: int b: int>", "expected ',' or '>', found 'b'"),
        ("varchar", "unknown type 'varchar'"),
    ],
)
def test_a_wrong_type_says_what_was_expected(written: str, messages: str) -> None:
    with pytest.raises(ValueError, match=messages.replace("(", r"\(").replace(")", r"\)")):
        parse_type(written)
