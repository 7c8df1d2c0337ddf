"""Shapes and inferred columns compared with a slow reference implementation."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.formats.value_conversion import parse_text
from deltaworks.events.inference.column_types import (
    MAX_COLUMNS,
    MAX_DEPTH,
    Columns,
    Conflict,
    Shape,
    add_new_columns,
    changed_paths,
    infer_columns,
)
from deltaworks.specs.types import parse_type
from tests.examples import examples

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "7", "true", "2026-01-31T00:00:00Z"]),
)
NAMES = st.sampled_from(["a", "b", "B", "c-d", "_key", "e"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
EVENTS = st.dictionaries(NAMES, VALUES, max_size=4)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


#: What takes a value exactly, the type of least room first.
SLOW_TYPES: list[tuple[str, Callable[[Any], bool]]] = [
    ("boolean", lambda value: isinstance(value, bool)),
    ("long", lambda value: _whole(value) and -(2**63) <= value < 2**63),
    ("decimal(20,0)", _whole),
    ("double", lambda value: isinstance(value, float) or (_whole(value) and abs(value) <= 2**53)),
    ("string", lambda value: isinstance(value, str)),
]


def shape_of(*events: dict[str, Any]) -> Shape:
    shape = Shape()
    for event in events:
        shape.add_value(event)
    return shape


def texts(columns: Columns) -> dict[str, str]:
    return {name: str(kind) for name, kind in columns.items()}


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SCALARS, max_size=8))
def test_a_field_has_the_narrowest_type_of_its_values_or_a_conflict(values: list[Any]) -> None:
    conflicts: list[Conflict] = []
    found = infer_columns(shape_of(*({"f": value} for value in values)), conflicts=conflicts)
    present = [value for value in values if value is not None]
    fitting = [name for name, takes in SLOW_TYPES if all(map(takes, present))]
    if not present:
        assert found == {}
        return
    if fitting:
        assert (texts(found), conflicts) == ({"f": fitting[0]}, [])
    misfits = convert_column(values, found["f"])[1]
    assert len(misfits) <= sum(conflict.values for conflict in conflicts)
    assert len(misfits) < len(present)
    assert bool(conflicts) == (not fitting)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(EVENTS, max_size=6), st.randoms(use_true_random=False))
def test_merging_samples_is_associative_and_commutative(events: list[dict[str, Any]], chance: random.Random) -> None:
    whole = shape_of(*events)
    parts = [shape_of(event) for event in events]
    chance.shuffle(parts)
    while len(parts) > 1:
        one = parts.pop(chance.randrange(len(parts)))
        parts[chance.randrange(len(parts))].merge(one)
    merged = parts[0] if parts else Shape()
    assert merged == whole
    assert list(infer_columns(merged).items()) == list(infer_columns(whole).items())


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(EVENTS, max_size=4), st.lists(EVENTS, min_size=1, max_size=4))
def test_adding_new_columns_reaches_a_fixed_point(first: list[dict[str, Any]], later: list[dict[str, Any]]) -> None:
    columns: Columns = infer_columns(shape_of(*first))
    for _ in range(100):
        if not any(add_new_columns(columns, shape_of(event)) != columns for event in later):
            break
        grown = add_new_columns(columns, shape_of(*later))
        assert changed_paths(columns, grown)
        assert all(_same_but_for_fields(columns[name], grown[name]) for name in columns)
        columns = grown
    else:
        pytest.fail("columns are added without end")


def _same_but_for_fields(before: Any, after: Any) -> bool:
    """Whether a type is what it was, but for fields added to its structs."""
    if type(before) is not type(after):
        return False
    if hasattr(before, "fields"):
        grown = dict(after.fields)
        return all(name in grown and _same_but_for_fields(kind, grown[name]) for name, kind in before.fields)
    if hasattr(before, "element"):
        return _same_but_for_fields(before.element, after.element)
    return bool(before == after)


WRITTEN = st.one_of(
    st.integers(-(10**21), 10**21).map(str),
    st.floats(allow_nan=True).map(repr),
    st.sampled_from(["007", "1.50", "1.5", "+1", "-0", "-0.0", "1e5", "true", "True", " 1", "", "nan", "inf", "1_0"]),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(WRITTEN, min_size=1, max_size=5))
def test_types_of_texts_preserve_every_number_and_other_notations(found: list[str]) -> None:
    shape = Shape()
    for text in found:
        shape.add_texts({"f": text}, typed=True)
    conflicts: list[Conflict] = []
    kind = infer_columns(shape, conflicts=conflicts)["f"]
    array, misfits = convert_column([parse_text(text, kind) for text in found], kind)
    assert (conflicts, misfits) == ([], {})
    for text, value in zip(found, array.to_pylist(), strict=True):
        match value:
            case bool():
                assert text == str(value).lower()
            case str():
                assert text == value
            case _:
                assert Decimal(text) == Decimal(repr(value) if isinstance(value, float) else value)
                assert text == text.strip().removeprefix("+")
                assert not (text.lstrip("-").startswith("0") and text.lstrip("-0")[:1].isdigit())


def test_of_names_that_differ_in_case_the_most_frequent_is_the_column() -> None:
    assert texts(infer_columns(shape_of({"id": 1}, {"ID": 1}, {"ID": 1}, {"u": {"x": 1, "X": "a"}, "Id": None}))) == {
        "ID": "long",
        "u": "struct<X:string>",
    }


def test_fields_without_a_known_type_are_no_columns() -> None:
    assert infer_columns(shape_of({"a": None, "b": {}, "c": [], "d": [None], "e": {"x-y": 1}})) == {}


def test_names_of_the_source_itself_are_no_columns() -> None:
    assert texts(infer_columns(shape_of({"_key": 1, "_Rescued_Data": 1, "_id": 1}))) == {"_id": "long"}


def test_values_beyond_the_depth_limit_are_not_part_of_a_type() -> None:
    value: Any = 1
    for _ in range(3 * MAX_DEPTH):
        value = {"a": value}
    assert infer_columns(shape_of({"v": value, "w": 1})) == {"w": parse_type("long")}


def test_the_number_of_columns_is_limited_when_ids_are_used_as_names() -> None:
    event = {f"id{number}": number for number in range(MAX_COLUMNS + 50)}
    columns = infer_columns(shape_of({"id7": 1, "id1049": 1}, event))
    assert len(columns) == MAX_COLUMNS
    assert {"id7", "id1049"} <= columns.keys()
    assert add_new_columns(columns, shape_of({"other": 1})) == columns


def test_new_columns_are_reported_in_the_syntax_of_hints() -> None:
    before = infer_columns(shape_of({"a": 1, "u": {"n": "x"}, "l": [{"k": 1}]}))
    after = add_new_columns(before, shape_of({"u": {"m": 1.5}, "l": [{"z": [True]}], "b c": "x", "s": {"t": 1}}))
    assert changed_paths(before, after) == [
        "u.m double",
        "l.z array<boolean>",
        "`b c` string",
        "s struct<t:long>",
    ]
