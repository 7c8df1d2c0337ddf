"""Numbers in texts are those of JSON and of people, not those of Python."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.times import time_reader
from deltaworks.specs.times import TimeFormat
from deltaworks.specs.types import parse_type

NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NO_NUMBERS = [
    "1_000",
    "1_0.5",
    "\u0661\u0662",
    "\uff11\uff12",
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "0x10",
    "1,5",
    "",
    "-",
    "1e",
    "\u00b2",
]


def converted(value: Any, kind: str) -> tuple[Any, str]:
    """The value of a column, or the reason against it."""
    array, errors = convert_column([value], parse_type(kind))
    return array[0].as_py(), errors[0].detail if errors else ""


@given(st.text("0123456789_+-.eE \u0661nai", max_size=8))
@example("1_000")
def test_a_decimal_is_read_exactly_from_texts_of_numbers(text: str) -> None:
    value, reason = converted(text, "decimal(20,4)")

    if not NUMBER.fullmatch(text.strip()):
        assert value is None
        assert "decimal(20,4)" in reason
    elif value is not None:
        assert value == decimal.Decimal(text.strip())


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_texts_that_only_python_takes_for_numbers_are_none(text: str) -> None:
    assert converted(text, "decimal(10,2)")[0] is None
    for unit in ("epoch_seconds", "epoch_millis"):
        with pytest.raises(Exception, match=unit):
            time_reader(TimeFormat(unit=unit)).instant_us(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["float", "double", "int", "long", "decimal(10,2)", "timestamp"])
def test_the_reason_against_a_number_that_is_none_is_right(value: float, kind: str) -> None:
    found, reason = converted(value, kind)

    assert found is None
    assert ("too large" in reason) == (abs(value) == float("inf") and kind in ("float", "double"))
    assert "lost digits" not in reason


@pytest.mark.parametrize(
    ("text", "is_in"),
    [
        ("9999-12-31T23:59:59Z", True),
        ("9999-12-31T23:59:59.001Z", True),
        ("9999-12-31T23:59:59.999Z", True),
        ("9999-12-31T23:59:59.999999Z", True),
        ("9999-12-31T23:59:59.999999-00:01", False),
        ("1900-01-01T00:00:00Z", True),
        ("1899-12-31T23:59:59.999999Z", False),
    ],
)
def test_the_last_instant_of_year_9999_is_in_the_range(text: str, is_in: bool) -> None:
    array, errors = convert_column([text], parse_type("timestamp"))
    many, _ = convert_column([text, "2026-01-01T00:00:00Z"], parse_type("timestamp"))

    assert [error.code for error in errors.values()] == ([] if is_in else [ReasonCode.OUT_OF_RANGE])
    assert (array[0].as_py() is not None) == (many[0].as_py() is not None) == is_in


@given(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime.max))
def test_every_microsecond_from_1900_to_9999_is_read(at: dt.datetime) -> None:
    assert converted(f"{at.isoformat()}Z", "timestamp")[0] == at.replace(tzinfo=dt.UTC)
