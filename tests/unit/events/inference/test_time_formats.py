"""Time patterns are inferred only where samples are unambiguous."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.events.inference.field_profiles import (
    DATE_PATTERNS,
    DATETIME_PATTERNS,
    has_utc_offset,
    is_date_only,
    matching_patterns,
    narrow_patterns,
)
from deltaworks.events.time_patterns import NoMatch, pattern_reader
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.times import parse_pattern

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
