"""Times by pattern equal Python's strptime on any machine; ambiguous local times are the first, skipped ones raise."""

from __future__ import annotations

import calendar
import datetime as dt
import re
import time
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events import time_patterns
from deltaworks.events.columns import convert_column
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.events.time_patterns import (
    EPOCH,
    MICROSECOND,
    NoMatch,
    NonexistentTime,
    PatternReader,
    instant_us,
    instants_us,
    pattern_reader,
)
from deltaworks.specs.times import TimeFormat, parse_pattern
from deltaworks.specs.types import parse_type
from tests.examples import examples

NAIVE_EPOCH = dt.datetime(1970, 1, 1)
UTC = dt.UTC
PATTERNS = (
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y-%m-%dT%H:%M:%S.%f%z",
    "%Y-%m-%d",
    "%d.%m.%Y %H:%M",
    "%m/%d/%y %I:%M %p",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d %B %Y",
    "%Y%m%d%H%M%S",
    "%Y%m%d%H%M%S%f",
    "%H:%M:%S,%f on %d-%b-%y",
    "%b %d  %Y",
    "%Y年%m月%d日",
)
#: What Python reads and a pattern here does not: offsets with seconds.
SECONDS_OF_OFFSET = re.compile(r"[+-]\d\d:?[0-5]\d:?[0-5]\d")
MONTHS = [dt.date(2000, month, 1).strftime("%B") for month in range(1, 13)]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59)


def written(at: dt.datetime, offset_minutes: int, pattern: str, *, padded: bool = True, colon: bool = False) -> str:
    """A time as a text of the pattern, by arithmetic alone."""
    two = "02" if padded else ""
    sign, offset = "-" if offset_minutes < 0 else "+", abs(offset_minutes)
    values = {
        "Y": f"{at.year:04}",
        "y": f"{at.year % 100:02}",
        "m": f"{at.month:{two}}",
        "b": MONTHS[at.month - 1][:3],
        "B": MONTHS[at.month - 1],
        "d": f"{at.day:{two}}",
        "a": DAYS[at.weekday()][:3],
        "A": DAYS[at.weekday()],
        "H": f"{at.hour:{two}}",
        "I": f"{at.hour % 12 or 12:{two}}",
        "p": "PM" if at.hour >= 12 else "AM",
        "M": f"{at.minute:{two}}",
        "S": f"{at.second:{two}}",
        "f": f"{at.microsecond:06}",
        "z": f"{sign}{offset // 60:02}{':' * colon}{offset % 60:02}",
    }
    return re.sub("%(.)", lambda match: values[match.group(1)], pattern)


def by_python(text: str, pattern: str) -> dt.datetime | None:
    """The time without an offset, in UTC where the text has one."""
    try:
        at = dt.datetime.strptime(text, pattern)
        return at if at.tzinfo is None else at.replace(tzinfo=None) - (at.utcoffset() or dt.timedelta())
    except (ValueError, OverflowError):
        return None


def read(text: str, pattern: str) -> dt.datetime | None:
    """By itself."""
    try:
        return pattern_reader(pattern).read(text)
    except (ValueError, OverflowError):
        return None


def read_together(texts: list[str], pattern: str) -> list[dt.datetime]:
    micros = pattern_reader(pattern).read_all(pa.array(texts, pa.string()))
    return [NAIVE_EPOCH + int(at) * dt.timedelta(microseconds=1) for at in micros]


@settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(PATTERNS),
    st.lists(st.tuples(TIMES, OFFSETS, st.booleans(), st.booleans()), min_size=1, max_size=6),
)
def test_times_are_exactly_what_was_written(pattern: str, times: list[tuple[dt.datetime, int, bool, bool]]) -> None:
    beside = re.search("%[YmdHMS]%", pattern) is not None
    texts = [written(at, offset, pattern, padded=pad or beside, colon=colon) for at, offset, pad, colon in times]
    expected = [by_python(text, pattern) for text in texts]

    assert None not in expected
    assert [read(text, pattern) for text in texts] == expected
    assert read_together(texts, pattern) == expected
    if "%f" in pattern and "%Y" in pattern:
        shifts = [dt.timedelta(minutes=offset if "%z" in pattern else 0) for _, offset, _, _ in times]
        assert expected == [at - shift for (at, _, _, _), shift in zip(times, shifts, strict=True)]


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(PATTERNS), TIMES, OFFSETS, st.data())
@example("%Y-%m-%d", dt.datetime(2024, 2, 29), 0, None)
def test_a_text_that_was_changed_is_read_as_python_reads_it_or_refused(
    pattern: str, at: dt.datetime, offset: int, data: st.DataObject | None
) -> None:
    text = written(at, offset, pattern)
    if data is not None:
        place = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 2))
        text = text[:place] + data.draw(st.text("0123456789 :-+Z/amAPJune.", max_size=2)) + text[place + cut :]

    expected, ours = by_python(text, pattern), read(text, pattern)

    if ours is None and expected is not None:
        # Numbers side by side have all their digits: "1112024" is no date, since it would be two.
        sides = re.search(r"%[YmdHMSf]%[YmdHMSf]", pattern)
        assert sides or SECONDS_OF_OFFSET.search(text), (text, pattern)
    else:
        assert ours == expected, (text, pattern)
    good = written(at, offset, pattern)
    if ours is not None:
        assert read_together([good, text, text, good], pattern) == [
            read(good, pattern),
            ours,
            ours,
            read(good, pattern),
        ]
    else:
        with pytest.raises((ValueError, OverflowError)):
            read_together([good, text], pattern)


@given(st.lists(st.sampled_from(["5/6/2024", "05/6/2024", "5/06/2024", "12/6/2024", "5/12/2024", "12/12/2024"])))
def test_texts_of_one_length_with_several_layouts_are_separated(texts: list[str]) -> None:
    assert read_together(texts, "%d/%m/%Y") == [by_python(text, "%d/%m/%Y") for text in texts]


def test_texts_beyond_the_layout_limit_are_parsed_one_by_one() -> None:
    texts = [f"2024-01-02 03:04:05{' ' * blanks}.{'1' * digits}" for blanks in range(4) for digits in range(1, 7)]
    pattern = "%Y-%m-%d %H:%M:%S .%f"
    texts = [text.replace("05.", "05 .") for text in texts]

    assert read_together(texts, pattern) == [by_python(text, pattern) for text in texts]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("31/Feb/2024", "%d/%b/%Y"),
        ("29.02.2023", "%d.%m.%Y"),
        ("29.02.1900", "%d.%m.%Y"),
        ("00.01.2024", "%d.%m.%Y"),
        ("01.13.2024", "%d.%m.%Y"),
        ("2024-01-01 24:00", "%Y-%m-%d %H:%M"),
        ("2024-01-01 23:59:60", "%Y-%m-%d %H:%M:%S"),
        ("2024-01-01 00:30 PM", "%Y-%m-%d %I:%M %p"),
        ("0000-01-01", "%Y-%m-%d"),
        ("2024-01-01 +2400", "%Y-%m-%d %z"),
        ("2024-01-01 +0060", "%Y-%m-%d %z"),
        ("2024-01-01 z", "%Y-%m-%d %z"),
        ("2024-01-01 ", "%Y-%m-%d"),
        ("2024-01-01\n", "%Y-%m-%d"),
        ("٢٠٢٤-01-01", "%Y-%m-%d"),
        ("2024-01-0:", "%Y-%m-%d"),
        ("2024/01/01", "%Y-%m-%d"),
        ("01 Jax 2024", "%d %b %Y"),
        ("Xon 01 Jan 2024", "%a %d %b %Y"),
        ("2024-01-01 01:00 XM", "%Y-%m-%d %I:%M %p"),
        ("1112024", "%d%m%Y"),
        ("", "%Y-%m-%d"),
    ],
)
def test_invalid_times_raise_alone_and_among_others(text: str, pattern: str) -> None:
    good = written(dt.datetime(2024, 1, 1), 0, pattern)

    assert read(text, pattern) is None
    for texts in ([text], [good, text], [good, good, text]):
        with pytest.raises((ValueError, OverflowError)):
            read_together(texts, pattern)


def test_the_two_digits_of_a_year_are_read_as_posix_says() -> None:
    texts = [f"{year:02}-01-01" for year in range(100)]

    assert [at.year for at in read_together(texts, "%y-%m-%d")] == [*range(2000, 2069), *range(1969, 2000)]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine in Sydney whose users speak German: what strptime of Python and of C would go by."""
    german = ["", "Jän", "Feb", "Mär", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez"]
    monkeypatch.setattr(calendar, "month_abbr", german)
    monkeypatch.setenv("TZ", "Australia/Sydney")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_neither_the_locale_nor_the_zone_of_the_machine_matters() -> None:
    time_patterns.pattern_reader.cache_clear()
    texts = ["20/May/2015:21:05:15 +0000", "20/Dec/2015:21:05:15 +0200"]

    assert read_together(texts, PATTERNS[0]) == [
        dt.datetime(2015, 5, 20, 21, 5, 15),
        dt.datetime(2015, 12, 20, 19, 5, 15),
    ]
    array, misfits = convert_column(
        ["20.05.2015 21:05"], parse_type("timestamp"), times=TimeFormat(format="%d.%m.%Y %H:%M")
    )
    assert (array.to_pylist(), misfits) == ([dt.datetime(2015, 5, 20, 21, 5, tzinfo=UTC)], {})


def test_texts_of_one_layout_are_never_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reading a chunk costs rests on it."""
    texts = [f"{day:02}/May/2015:21:05:{second:02} +0000" for day in range(1, 32) for second in range(60)]
    reader = PatternReader(parse_pattern(PATTERNS[0]))
    monkeypatch.setattr(reader, "read", None)

    assert len(set(reader.read_all(pa.array(texts)).tolist())) == len(texts)


def test_a_slice_of_an_array_is_read_from_its_own_beginning() -> None:
    texts = pa.array(["2023-01-01", "2024-01-02", "2025-01-03", "2026-01-04"])

    assert pattern_reader("%Y-%m-%d").read_all(texts.slice(1, 2)).tolist() == [
        (dt.datetime(2024, 1, 2) - NAIVE_EPOCH) // dt.timedelta(microseconds=1),
        (dt.datetime(2025, 1, 3) - NAIVE_EPOCH) // dt.timedelta(microseconds=1),
    ]
    assert pattern_reader("%Y-%m-%d").read_all(pa.array([], pa.string())).tolist() == []
    with pytest.raises(NoMatch):
        pattern_reader("%Y-%m-%d").read_all(pa.array(["", ""]))


def converted(values: list[Any], kind: str, **form: Any) -> tuple[list[Any], dict[int, ConversionError]]:
    """A column, which is the same at once and value by value."""
    array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(**form))
    alone, _ = convert_column([*values, object()], parse_type(kind), times=TimeFormat(**form))
    assert array.to_pylist() == alone.to_pylist()[:-1]
    return array.to_pylist(), misfits


def test_an_error_names_the_value_and_the_expected_format() -> None:
    values = ["20/May/2015:21:05:15 +0000", None, "yesterday", 7, "31/Feb/2015:21:05:15 +0000"]

    times, misfits = converted(values, "timestamp", format=PATTERNS[0])

    assert times == [dt.datetime(2015, 5, 20, 21, 5, 15, tzinfo=UTC), None, None, None, None]
    assert {index: (misfit.code, misfit.detail) for index, misfit in misfits.items()} == {
        2: (ReasonCode.TYPE_MISMATCH, "the text 'yesterday' is not a valid time of the form %d/%b/%Y:%H:%M:%S %z"),
        3: (ReasonCode.TYPE_MISMATCH, "the number 7 is not a valid text of the form %d/%b/%Y:%H:%M:%S %z"),
        4: (
            ReasonCode.TYPE_MISMATCH,
            "the text '31/Feb/2015:21:05:15 +0000' is not a valid time of the form %d/%b/%Y:%H:%M:%S %z: "
            "there is no such day",
        ),
    }


def test_a_time_of_a_pattern_outside_of_1900_to_9999_is_out_of_range_and_a_date_alone_is_not() -> None:
    times, misfits = converted(["1899-12-31", "1900-01-01"], "timestamp", format="%Y-%m-%d")
    dates, none = converted(["1879-03-14", "0001-01-01", "9999-12-31"], "date", format="%Y-%m-%d")

    assert (times, misfits[0].code) == ([None, dt.datetime(1900, 1, 1, tzinfo=UTC)], ReasonCode.OUT_OF_RANGE)
    assert (dates, none) == ([dt.date(1879, 3, 14), dt.date(1, 1, 1), dt.date(9999, 12, 31)], {})


def test_a_date_of_a_time_is_that_of_utc() -> None:
    dates, _ = converted(["01.01.2024 00:30 +0100", "01.01.2024 01:00 +0100"], "date", format="%d.%m.%Y %H:%M %z")

    assert dates == [dt.date(2023, 12, 31), dt.date(2024, 1, 1)]


def test_a_date_that_is_sent_as_a_number_of_digits_is_read_by_them() -> None:
    dates, misfits = converted([20240131, "20240201", 2024131, True, 20240131.0], "date", format="%Y%m%d")

    assert dates == [dt.date(2024, 1, 31), dt.date(2024, 2, 1), None, None, None]
    assert set(misfits) == {2, 3, 4}
    assert converted([2024013123], "timestamp", format="%Y%m%d%H")[0] == [dt.datetime(2024, 1, 31, 23, tzinfo=UTC)]


def test_times_inside_of_values_are_read_by_the_pattern_too() -> None:
    kind = "array<struct<at: timestamp, n: int>>"

    values, misfits = converted([[{"at": "01.02.2024", "n": 1}], [{"at": "2024"}]], kind, format="%d.%m.%Y")

    assert values == [[{"at": dt.datetime(2024, 2, 1, tzinfo=UTC), "n": 1}], None]
    assert misfits[1].path == "[].at"


#: Clocks set by an hour, by half of one, at midnight, at a minute past it, by a whole day, back in summer; by seconds.
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Pacific/Apia",
    "Europe/Dublin",
    "Africa/Monrovia",
    "Asia/Kathmandu",
    "Etc/GMT+12",
    "UTC",
)
_DAY = dt.timedelta(days=1)


def by_trying(local: dt.datetime, zone: str) -> dt.datetime | None:
    """The first instant at which a clock of the zone shows the time: any offset of the days around may be the one."""
    near = [(local + hours * dt.timedelta(hours=1)).replace(tzinfo=dt.UTC) for hours in range(-50, 51)]
    offsets = {at.astimezone(ZoneInfo(zone)).utcoffset() or dt.timedelta() for at in near}
    shown = [(local - offset).replace(tzinfo=dt.UTC) for offset in offsets]
    return min((at for at in shown if at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local), default=None)


def alone(local: dt.datetime, zone: str) -> dt.datetime | None:
    try:
        return (EPOCH + instant_us(local, zone) * MICROSECOND).replace(tzinfo=dt.UTC)
    except NonexistentTime:
        return None


def changes_of(zone: str) -> list[dt.datetime]:
    """Times on the clocks of the zone, beside those at which they are set."""
    hours = [dt.datetime(2011, 1, 1, tzinfo=dt.UTC) + n * dt.timedelta(hours=1) for n in range(24 * 366 * 2)]
    local = [at.astimezone(ZoneInfo(zone)) for at in hours]
    return [before.replace(tzinfo=None) for before, after in pairwise(local) if before.utcoffset() != after.utcoffset()]


CHANGES = {zone: changes_of(zone) or [dt.datetime(2024, 1, 1)] for zone in ZONES}
NEAR_CHANGES = st.sampled_from(ZONES).flatmap(
    lambda zone: st.tuples(
        st.just(zone),
        st.lists(
            st.builds(
                lambda at, seconds: at + dt.timedelta(seconds=seconds),
                st.sampled_from(CHANGES[zone]),
                st.integers(-100_000, 100_000) | st.sampled_from([0, -1, 3600, 1800, 3599]),
            )
            | st.datetimes(dt.datetime(1901, 1, 3), dt.datetime(2150, 1, 1)),
            min_size=1,
            max_size=5,
        ),
    )
)


@settings(max_examples=examples(300), deadline=None)
@given(NEAR_CHANGES)
@example(("Pacific/Apia", [dt.datetime(2011, 12, 30, 12)]))
@example(("America/St_Johns", [dt.datetime(2010, 11, 6, 23, 30), dt.datetime(2010, 3, 14, 0, 30)]))
def test_a_time_is_the_first_instant_at_which_a_clock_shows_it(case: tuple[str, list[dt.datetime]]) -> None:
    zone, times = case
    expected = [by_trying(at, zone) for at in times]

    assert [alone(at, zone) for at in times] == expected
    local_us = np.array([(at - EPOCH) // MICROSECOND for at in times], np.int64)
    if None in expected:
        with pytest.raises(NonexistentTime):
            instants_us(local_us, zone)
    else:
        together = [(EPOCH + int(at) * MICROSECOND).replace(tzinfo=dt.UTC) for at in instants_us(local_us, zone)]
        assert together == expected


def converted_in_berlin(values: list[Any], kind: str = "timestamp", **form: Any) -> tuple[list[Any], dict[int, Any]]:
    array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(zone="Europe/Berlin", **form))
    return array.to_pylist(), {index: (misfit.code, misfit.detail) for index, misfit in misfits.items()}


@pytest.mark.parametrize("form", [{}, {"format": "%Y-%m-%d %H:%M"}])
def test_clock_changes_leave_no_ambiguous_time(form: dict[str, str]) -> None:
    """In March 02:30 never was, in October it was twice."""
    texts = ["2024-03-31 01:59", "2024-03-31 02:30", "2024-03-31 03:00", "2024-10-27 02:30", "2024-10-27 03:00", None]

    times, misfits = converted_in_berlin(texts, **form)

    assert [at and at.isoformat(" ") for at in times] == [
        "2024-03-31 00:59:00+00:00",
        None,
        "2024-03-31 01:00:00+00:00",
        "2024-10-27 00:30:00+00:00",
        "2024-10-27 02:00:00+00:00",
        None,
    ]
    skipped = "the text '2024-03-31 02:30' is a time that clocks in Europe/Berlin skipped"
    assert misfits == {1: (ReasonCode.OUT_OF_RANGE, skipped)}


def test_an_offset_in_a_text_overrides_the_zone() -> None:
    times, misfits = converted_in_berlin(["2024-07-01T12:00:00", "2024-07-01T12:00:00Z", "2024-07-01T12:00:00-05:00"])

    assert ([at.hour for at in times], misfits) == ([10, 12, 17], {})


def test_the_date_of_a_time_in_a_zone_is_that_of_utc_and_a_date_alone_stays() -> None:
    assert converted_in_berlin(["2024-07-01 00:30", "2024-07-01 02:30"], "date", format="%Y-%m-%d %H:%M")[0] == [
        dt.date(2024, 6, 30),
        dt.date(2024, 7, 1),
    ]
    assert converted_in_berlin(["2024-07-01", "2024-07-01T00:30:00"], "date")[0] == [
        dt.date(2024, 7, 1),
        dt.date(2024, 6, 30),
    ]
