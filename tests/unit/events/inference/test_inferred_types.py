"""Shapes, types and unambiguous time patterns inferred from samples, compared with a slow reference implementation."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.inference.field_profiles import (
    DATE_PATTERNS,
    DATETIME_PATTERNS,
    Shape,
    has_utc_offset,
    is_date_only,
    matching_patterns,
    narrow_patterns,
)
from deltaworks.events.inference.inferred_types import Conflict, infer_type
from deltaworks.events.time_patterns import NoMatch, pattern_reader
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.times import parse_pattern
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


TIMES = ("", " %H:%M", ":%H:%M:%S", "T%H:%M:%S.%f", " %H:%M:%S,%f", ", %I:%M %p", " %I:%M:%S%p")
OFFSETS = ("", " %z", "%z", " UTC", " GMT")
PATTERNS = [
    *DATETIME_PATTERNS,
    *(date + time + offset * bool(time) for date in DATE_PATTERNS for time in TIMES for offset in OFFSETS),
]
INSTANTS = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2068, 1, 1), timezones=st.just(dt.UTC))


def fits(pattern: str, text: str) -> bool:
    try:
        pattern_reader(pattern).read(text)
    except (NoMatch, ValueError):
        return False
    return True


def all_fitting(texts: list[str]) -> tuple[str, ...]:
    formats = matching_patterns(texts[0])
    for text in texts[1:]:
        formats = narrow_patterns(formats, text)
    return formats


@given(pattern=st.sampled_from(PATTERNS), instants=st.lists(INSTANTS, min_size=1, max_size=5), data=st.data())
def test_every_pattern_that_matches_all_texts_is_returned(
    pattern: str, instants: list[dt.datetime], data: st.DataObject
) -> None:
    texts = [instant.strftime(pattern) for instant in instants]
    behind = pattern[len(next((date for date in DATE_PATTERNS if pattern.startswith(date)), "")) :]
    rivals = [date + behind for date in DATE_PATTERNS if parse_or_none(date + behind)]

    formats = all_fitting(texts)

    assert pattern in formats
    if pattern not in DATETIME_PATTERNS:
        assert set(formats) - set(DATETIME_PATTERNS) == {
            rival for rival in rivals if all(fits(rival, text) for text in texts)
        }
    assert set(formats) == set(all_fitting(data.draw(st.permutations(texts))))


def parse_or_none(pattern: str) -> object:
    try:
        return parse_pattern(pattern)
    except ValueError:
        return None


@given(pattern=st.sampled_from(PATTERNS), instants=st.lists(INSTANTS, min_size=1, max_size=5))
def test_a_single_matching_pattern_is_the_original_one(pattern: str, instants: list[dt.datetime]) -> None:
    formats = all_fitting([instant.strftime(pattern) for instant in instants])

    assert formats == (pattern,) or len(formats) > 1


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9/.: -]{0,24}", fullmatch=True))
def test_a_text_without_a_time_matches_nothing(text: str) -> None:
    assert all(fits(pattern, text) for pattern in matching_patterns(text))


@pytest.mark.parametrize(
    ("texts", "formats"),
    [
        (["20/May/2015:21:05:15 +0000"], ("%d/%b/%Y:%H:%M:%S %z",)),
        (["10/17/2020 14:05"], ("%m/%d/%Y %H:%M",)),
        (["17/10/2020 9:05"], ("%d/%m/%Y %H:%M",)),
        (["10/7/2020 14:05"], ("%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M")),
        (["10/7/2020 14:05", "10/17/2020 14:05"], ("%m/%d/%Y %H:%M",)),
        (["10/17/2020 14:05", "17/10/2020 14:05"], ()),
        (["20/10/17"], ("%d/%m/%y", "%y/%m/%d")),
        (["May 5, 2020"], ("%b %d, %Y", "%B %d, %Y")),
        (["May 5, 2020", "Jun 5, 2020"], ("%b %d, %Y",)),
        (["Wed, 21 Oct 2015 07:28:00 GMT"], ("%a, %d %b %Y %H:%M:%S GMT",)),
        (["Thu Nov  5 09:12:01 2020"], ("%a %b %d %H:%M:%S %Y",)),
        (["2020-10-17 14:05:01 UTC"], ("%Y-%m-%d %H:%M:%S UTC",)),
        (["31/02/2020 14:05"], ()),
        (["10/17/2020 14:05", "10/17/2020 14:05:01"], ()),
        (["1.2.3"], ()),
        (["order 10/17/2020"], ()),
    ],
)
def test_common_time_formats_are_detected(texts: list[str], formats: tuple[str, ...]) -> None:
    assert all_fitting(texts) == formats


def test_the_known_patterns_are_documented() -> None:
    page = (PROJECT_ROOT / "docs" / "tutorials/first-pipeline.md").read_text()
    section = page.partition("#### Formats of times")[2].partition("\n#")[0]

    for pattern in (*DATE_PATTERNS, *DATETIME_PATTERNS):
        assert f"`{pattern}`" in section or f"`{re.sub('[.-]', '/', pattern)}`" in section, pattern


def test_properties_of_patterns() -> None:
    assert is_date_only("%d/%m/%Y")
    assert not is_date_only("%d/%m/%Y %H:%M")
    assert [has_utc_offset(f"%d/%m/%Y %H:%M{offset}") for offset in OFFSETS] == [False, True, True, True, True]
