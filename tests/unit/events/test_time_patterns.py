"""Times parsed by a pattern equal Python's strptime, alone or in columns, on any machine."""

from __future__ import annotations

import calendar
import datetime as dt
import re
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events import time_patterns
from deltaworks.events.columns import convert_column
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.time_patterns import NoMatch, PatternReader, pattern_reader
from deltaworks.specs.times import TimeFormat, parse_pattern
from deltaworks.specs.types import parse_type
from tests.examples import examples

EPOCH = dt.datetime(1970, 1, 1)
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
    return [EPOCH + int(at) * dt.timedelta(microseconds=1) for at in micros]


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
        (dt.datetime(2024, 1, 2) - EPOCH) // dt.timedelta(microseconds=1),
        (dt.datetime(2025, 1, 3) - EPOCH) // dt.timedelta(microseconds=1),
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
