"""Columns: vectorized and single conversions agree, are exact, report every error, and read numbers as JSON does."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.events.times import time_reader
from deltaworks.specs.times import TimeFormat, TimeUnit
from deltaworks.specs.types import parse_type
from tests.examples import examples

UTC = dt.UTC
UNITS: list[TimeUnit] = ["epoch_seconds", "epoch_millis", "iso8601"]
ISO = st.one_of(
    st.datetimes(
        dt.datetime(1850, 1, 1), timezones=st.sampled_from([None, UTC, dt.timezone(dt.timedelta(hours=-9.5))])
    ).map(dt.datetime.isoformat),
    st.dates().map(str),
    st.sampled_from(
        [
            "2024-01-01T00:00:00Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00.1Z",
            "2024-01-01T00:00:00.123456789Z",
            "2024-01-01T00:00:00+00",
            "2024-01-01T00:00:00+2460",
            "2024-01-01T00:00:00-2359",
            "2024-01-01T00:00Z",
            "2024-01-01T00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T23:59:60Z",
            "2024-02-30T00:00:00Z",
            "20240101T000000Z",
            " 2024-01-01T00:00:00Z",
            "2024-01-01T00:00:00z",
            "2024-01-01T00:00:00,5Z",
            "2024-W01-1",
            "9999-12-31T23:59:59.999999Z",
            "0001-01-01T00:00:00+14:00",
            "+2024-01-01T00:00:00Z",
        ]
    ),
)
NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-(10**6), 10**6, places=2).map(float),
    st.sampled_from(
        [2**31, -(2**31), 2**31 - 1, 2**53 + 1, 2**63, 2**63 - 1, -0.0, 1e300, 3.5e38, 16777217, 0.1, 4.99]
    ),
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | ISO
    | st.text(max_size=4)
    | st.from_regex(r"-?\d{1,9}(\.\d{1,4})?", fullmatch=True),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
TYPES = [
    "string",
    "int",
    "long",
    "float",
    "double",
    "boolean",
    "date",
    "timestamp",
    "binary",
    "decimal(12,2)",
    "decimal(38,20)",
    "decimal(5,0)",
    "array<int>",
    "map<string,double>",
    "struct<a: string, b: array<decimal(5,2)>>",
]


def one_by_one(values: list[Any], kind: str, unit: TimeUnit) -> tuple[list[Any], dict[int, ReasonCode]]:
    """Each value in a column of its own, as the slow and obvious way."""
    converted, misfits = [], {}
    for index, value in enumerate(values):
        # What fits no type beside it keeps the column from being converted at once.
        array, found = convert_column([value, object()], parse_type(kind), times=TimeFormat(unit))
        converted.append(array[0].as_py())
        if 0 in found:
            misfits[index] = found[0].code
    return converted, misfits


@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(TYPES), st.sampled_from(UNITS), st.data())
def test_a_vectorized_column_equals_its_single_values(kind: str, unit: TimeUnit, data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from([ANYTHING, st.none() | NUMBERS, st.none() | ISO, st.integers(0, 2 * 10**12)]))
    values = data.draw(st.lists(strategy, max_size=5))

    array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(unit))

    wanted, wrong = one_by_one(values, kind, unit)
    assert array.to_pylist() == wanted
    assert {index: misfit.code for index, misfit in misfits.items()} == wrong
    assert len(array) == len(values)


@given(st.lists(st.none() | NUMBERS, min_size=1, max_size=6))
def test_a_failed_value_is_null_and_affects_no_other(numbers: list[Any]) -> None:
    values: list[Any] = []
    for number in numbers:
        values += [number, "no number"]

    array, misfits = convert_column(values, parse_type("double"))

    assert set(misfits) == set(range(1, len(values), 2))
    assert array.to_pylist()[::2] == [None if number is None else float(number) for number in numbers]
    assert array.to_pylist()[1::2] == [None] * len(numbers)


@given(st.sets(st.integers(0, 999), max_size=8), st.sampled_from(["int", "double", "decimal(12,2)", "array<int>"]))
@settings(max_examples=examples(40), deadline=None)
def test_errors_are_reported_by_index(bad: set[int], kind: str) -> None:
    good: Any = [1] if kind == "array<int>" else 1
    values = ["no number" if index in bad else good for index in range(1_000)]

    array, misfits = convert_column(values, parse_type(kind))

    assert set(misfits) == bad
    assert [index for index, value in enumerate(array.to_pylist()) if value is None] == sorted(bad)
    assert array.type == convert_column([good], parse_type(kind))[0].type


def fits(value: Any, kind: str, unit: TimeUnit = "iso8601") -> Any:
    for values in ([value], [value, object()]):
        array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(unit))
        assert 0 not in misfits, misfits
    return array[0].as_py()


def misfit(value: Any, kind: str, unit: TimeUnit = "iso8601") -> ConversionError:
    for values in ([value], [value, object()]):
        array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(unit))
        assert array[0].as_py() is None
        assert 0 in misfits, array
    return misfits[0]


@given(st.integers(-(10**12) + 1, 10**12 - 1))
def test_decimals_are_exact_whether_written_as_number_or_text(cents: int) -> None:
    exact = decimal.Decimal(cents).scaleb(-2)

    assert fits(float(exact), "decimal(14,2)") == exact
    assert fits(str(exact), "decimal(14,2)") == exact


@pytest.mark.parametrize(
    ("value", "kind", "exact"),
    [
        (4.99, "decimal(12,2)", "4.99"),
        (0.1, "decimal(38,20)", "0.1"),
        (1.1, "decimal(38,30)", "1.1"),
        (12, "decimal(12,2)", "12"),
        (2**53 + 1, "decimal(20,0)", "9007199254740993"),
        ("123456789012345678.12", "decimal(20,2)", "123456789012345678.12"),
        (1e3, "decimal(12,2)", "1000"),
        (-0.0, "decimal(12,2)", "0"),
    ],
)
def test_a_decimal_is_what_was_written(value: Any, kind: str, exact: str) -> None:
    assert fits(value, kind) == decimal.Decimal(exact)


@pytest.mark.parametrize("written", ["12345678901234567.89", "0.12345678901234567", "123456789012345678901", "1e22"])
def test_a_number_that_may_have_lost_digits_is_no_decimal(written: str) -> None:
    """Sent as a text it keeps them."""
    assert "send it as a text" in str(misfit(orjson.loads(written), "decimal(38,17)"))
    assert fits(written, "decimal(38,2)" if "." not in written else "decimal(38,17)") == decimal.Decimal(written)


@pytest.mark.parametrize("value", [4.999, "4.999", 10**10, 1e11, 0.001])
def test_a_number_with_more_digits_than_the_decimal_is_out_of_range_and_never_rounded(value: Any) -> None:
    assert misfit(value, "decimal(12,2)").code is ReasonCode.OUT_OF_RANGE


@pytest.mark.parametrize("kind", ["int", "long", "float", "double", "decimal(5,2)", "string", "timestamp", "date"])
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number_and_no_text(kind: str, value: bool) -> None:
    for unit in UNITS:
        assert misfit(value, kind, unit).code is ReasonCode.TYPE_MISMATCH


@pytest.mark.parametrize("value", [0, 1, "true", "", [], {}])
def test_other_types_are_no_booleans(value: Any) -> None:
    assert misfit(value, "boolean").code is ReasonCode.TYPE_MISMATCH


@pytest.mark.parametrize(("kind", "bits"), [("int", 31), ("long", 63)])
def test_integers_are_held_to_their_range(kind: str, bits: int) -> None:
    for value in (2**bits - 1, -(2**bits)):
        assert fits(value, kind) == value
    for value in (2**bits, -(2**bits) - 1, 1e300):
        assert misfit(value, kind).code is ReasonCode.OUT_OF_RANGE


def test_a_whole_number_written_with_a_point_is_an_integer_and_a_broken_one_is_not() -> None:
    assert fits(5.0, "int") == 5
    assert misfit(5.5, "int").code is ReasonCode.TYPE_MISMATCH
    assert misfit("5", "int").code is ReasonCode.TYPE_MISMATCH


@pytest.mark.parametrize(
    ("value", "kind"), [(1e300, "float"), (3.5e38, "float"), (10**400, "double"), (math.inf, "double")]
)
def test_a_number_too_large_for_its_float_is_out_of_range_and_never_infinite(value: Any, kind: str) -> None:
    assert misfit(value, kind).code is ReasonCode.OUT_OF_RANGE


def test_an_integer_in_a_float_column_is_rounded_as_floats_are() -> None:
    assert fits(16777217, "float") == 16777216.0
    assert fits(2**53 + 1, "double") == float(2**53)


@pytest.mark.parametrize(
    ("value", "unit", "instant"),
    [
        (1_700_000_000, "epoch_seconds", "2023-11-14T22:13:20"),
        ("1700000000", "epoch_seconds", "2023-11-14T22:13:20"),
        (1_700_000_000.25, "epoch_seconds", "2023-11-14T22:13:20.250000"),
        (1_700_000_000_123, "epoch_millis", "2023-11-14T22:13:20.123000"),
        (-1, "epoch_seconds", "1969-12-31T23:59:59"),
        ("2024-01-02T03:04:05Z", "iso8601", "2024-01-02T03:04:05"),
        ("2024-01-02T03:04:05+02:00", "iso8601", "2024-01-02T01:04:05"),
        ("2024-01-02T03:04:05.678901", "iso8601", "2024-01-02T03:04:05.678901"),
        ("2024-01-02 03:04:05", "iso8601", "2024-01-02T03:04:05"),
        ("2024-01-02", "iso8601", "2024-01-02T00:00:00"),
    ],
)
def test_times_are_read_in_their_unit_and_without_a_zone_as_utc(value: Any, unit: TimeUnit, instant: str) -> None:
    wanted = dt.datetime.fromisoformat(instant).replace(tzinfo=UTC)

    assert fits(value, "timestamp", unit) == wanted
    assert fits(value, "date", unit) == wanted.date()


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (1_700_000_000_123, "epoch_seconds"),
        (10**18, "epoch_millis"),
        (2**70, "epoch_seconds"),
        (-3_000_000_000, "epoch_seconds"),
        ("1899-12-31T23:59:59Z", "iso8601"),
        ("0001-01-01T00:00:00+14:00", "iso8601"),
    ],
)
def test_a_time_outside_of_1900_to_9999_is_out_of_range(value: Any, unit: TimeUnit) -> None:
    assert misfit(value, "timestamp", unit).code is ReasonCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("yesterday", "iso8601"),
        (1_700_000_000, "iso8601"),
        ("", "iso8601"),
        ("2024-02-30T00:00:00Z", "iso8601"),
        ("soon", "epoch_seconds"),
        ("nan", "epoch_seconds"),
        ("--5", "epoch_millis"),
        ("²", "epoch_millis"),
        ([], "epoch_seconds"),
    ],
)
def test_an_invalid_time_is_a_type_mismatch(value: Any, unit: TimeUnit) -> None:
    assert misfit(value, "timestamp", unit).code is ReasonCode.TYPE_MISMATCH


def test_a_date_may_lie_before_1900() -> None:
    assert fits("1879-03-14", "date") == dt.date(1879, 3, 14)


@settings(deadline=None)
@given(st.integers(-2_208_988_800, 253_402_300_799), st.integers(0, 999))
@example(253_402_300_799, 0)
def test_the_units_of_a_time_agree(seconds: int, millis: int) -> None:
    instant = dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=seconds)

    assert fits(seconds, "timestamp", "epoch_seconds") == instant
    assert fits(seconds * 1000, "timestamp", "epoch_millis") == instant
    assert fits(instant.isoformat(), "timestamp") == instant


def test_nested_values_are_converted_inside_and_lacking_fields_are_null() -> None:
    kind = "struct<at: timestamp, items: array<struct<sku: string, price: decimal(5,2)>>, extra: map<string,long>>"
    value = {
        "at": "2024-01-01T00:00:00Z",
        "items": [{"sku": "a", "price": 4.99, "unknown": 1}, None, {}],
        "extra": {"k": 1.0},
    }

    assert fits(value, kind) == {
        "at": dt.datetime(2024, 1, 1, tzinfo=UTC),
        "items": [{"sku": "a", "price": decimal.Decimal("4.99")}, None, {"sku": None, "price": None}],
        "extra": [("k", 1)],
    }


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"a": 1}, "array<int>"),
        ([1], "map<string,int>"),
        ([1], "struct<a: int>"),
        ([1, "x"], "array<int>"),
        ({"a": {"b": True}}, "struct<a: struct<b: int>>"),
        ({"a": 1}, "string"),
    ],
)
def test_a_nested_error_fails_the_complete_value(value: Any, kind: str) -> None:
    assert misfit(value, kind).code is ReasonCode.TYPE_MISMATCH


@pytest.mark.parametrize(
    ("value", "kind", "path", "detail"),
    [
        ({"a": "1"}, "struct<a: int>", ".a", "the text '1' is not a valid whole number"),
        ({"a": {"b": True}}, "struct<a: struct<b: int>>", ".a.b", "the boolean True is not a valid whole number"),
        ([{"n": 1}, {"n": 1.5}], "array<struct<n: int>>", "[].n", "the number 1.5 is not a valid whole number"),
        ({"secret key": "x"}, "map<string,double>", "[]", "the text 'x' is not a valid number"),
        ({"a": [[1], 2]}, "struct<a: array<array<int>>>", ".a[]", "the number 2 is not a valid array<int>"),
        ({"a": {}}, "struct<a: string>", ".a", "the object {} is not a valid string"),
        ({"a": []}, "struct<a: date>", ".a", "the array [] is not a valid ISO 8601 time"),
        ("1", "int", "", "the text '1' is not a valid whole number"),
    ],
)
def test_a_nested_error_names_its_field_and_value(value: Any, kind: str, path: str, detail: str) -> None:
    wrong = misfit(value, kind)

    assert (wrong.path, wrong.detail) == (path, detail)


def test_an_error_shows_a_truncated_value() -> None:
    detail = misfit("x" * 10_000, "int").detail

    assert detail.startswith("the text 'xxx")
    assert detail.endswith("is not a valid whole number")
    assert len(detail) < 120


def test_an_empty_column_has_its_type() -> None:
    for kind in TYPES:
        array, misfits = convert_column([], parse_type(kind))
        assert (len(array), misfits) == (0, {})
        assert array.type == convert_column([None], parse_type(kind))[0].type
        assert isinstance(array, pa.Array)


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
