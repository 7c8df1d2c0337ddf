"""Shapes and the types inferred from them, compared with a slow reference implementation."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.inference.field_profiles import Shape
from deltaworks.events.inference.inferred_types import Conflict, infer_type
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


def type_of(*events: dict[str, Any]) -> str:
    return str(infer_type(shape_of(*events)))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SCALARS, max_size=8))
def test_a_field_has_the_narrowest_type_of_its_values_or_a_conflict(values: list[Any]) -> None:
    conflicts: list[Conflict] = []
    shape = Shape()
    for value in values:
        shape.add_value(value)
    found = infer_type(shape, conflicts=conflicts)
    present = [value for value in values if value is not None]
    fitting = [name for name, takes in SLOW_TYPES if all(map(takes, present))]
    if not present:
        assert found is None
        return
    assert found is not None
    if fitting:
        assert (str(found), conflicts) == (fitting[0], [])
    misfits = convert_column(values, found)[1]
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
    assert infer_type(merged) == infer_type(whole)


def test_of_names_that_differ_in_case_the_most_frequent_is_a_field() -> None:
    found = type_of({"id": 1}, {"ID": 1}, {"ID": 1}, {"u": {"x": 1, "X": "a"}, "Id": None})
    assert found == "struct<ID:long,u:struct<X:string>>"


def test_values_without_a_known_type_are_no_fields() -> None:
    assert infer_type(shape_of({"a": None, "b": {}, "c": [], "d": [None], "e": {"x-y": 1}})) is None


def test_values_beyond_the_depth_limit_are_not_part_of_a_type() -> None:
    value: Any = 1
    for _ in range(60):
        value = {"a": value}
    assert type_of({"v": value, "w": 1}) == "struct<w:long>"
