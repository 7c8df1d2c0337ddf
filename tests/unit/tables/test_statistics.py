"""Data file statistics: correct bounds, as tight as Delta's own, and none for excluded columns."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.tables.statistics import DEFAULT_INDEXED_COUNT, STRING_PREFIX, IndexedColumns, statistics
from tests.examples import examples

UTC = dt.UTC
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.builds(
    lambda character, count, tail: character * count + tail,
    st.sampled_from(["a", "é", "\U0010ffff", "\x00", "~"]),
    st.integers(30, 36),
    st.text(st.sampled_from("a\U0010ffff"), max_size=4),
)
INSTANTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime.max, timezones=st.just(UTC))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), TEXT),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1))),
    "timestamp": (pa.timestamp("us", tz="UTC"), INSTANTS),
    "small decimal": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2, allow_nan=False)),
    "large decimal": (
        pa.decimal128(38, 10),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda digits: decimal.Decimal(digits).scaleb(-10, EXACT)),
    ),
    "boolean": (pa.bool_(), st.booleans()),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "array": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=2)),
}
EXACT = decimal.Context(prec=60)


def read_bound(text: Any, kind: pa.DataType) -> Any:
    """A bound as understood by a reader of the log."""
    if pa.types.is_timestamp(kind):
        return dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    if pa.types.is_floating(kind):
        return float(text)
    return dt.date.fromisoformat(text) if pa.types.is_date(kind) else text


def in_order(value: Any) -> Any:
    """Strings are ordered by UTF-8 bytes in Spark and delta-rs."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def column_values(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind, strategy = COLUMNS[draw(st.sampled_from(sorted(COLUMNS)))]
    return kind, draw(st.lists(st.none() | strategy, max_size=6))


@settings(max_examples=examples(400), deadline=None)
@given(column_values())
@example((pa.string(), ["a" * 32 + "\U0010ffff" + "x"]))
@example((pa.float64(), [math.nan, 1.0]))
@example((pa.float64(), [math.inf]))
@example((pa.float64(), [-0.0, 0.0, math.nan]))
@example((pa.timestamp("us", tz="UTC"), [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]))
@example((pa.timestamp("us", tz="UTC"), [dt.datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]))
@example((pa.decimal128(38, 10), [decimal.Decimal("0.1234567891"), decimal.Decimal("9007199254740993.0000000001")]))
@example((pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)]))
def test_bounds_bound_every_value_and_nulls_are_counted(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    data = pa.table({"c": pa.array(values, kind)})

    said = json.loads(statistics(data), parse_float=decimal.Decimal, parse_constant=_no_json)

    present = [value for value in data["c"].to_pylist() if value is not None]
    assert said["numRecords"] == len(values)
    assert said["nullCount"]["c"] == len(values) - len(present)
    if "c" in said["minValues"]:
        low = read_bound(said["minValues"]["c"], kind)
        assert all(in_order(low) <= in_order(value) for value in present)
    if "c" in said["maxValues"]:
        high = read_bound(said["maxValues"]["c"], kind)
        assert all(in_order(value) <= in_order(high) for value in present)
    if not present:
        assert "c" not in {**said["minValues"], **said["maxValues"]}


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=6))
def test_bounds_of_plain_numbers_are_tight(values: list[int]) -> None:
    said = json.loads(statistics(pa.table({"c": pa.array(values, pa.int64())})))

    assert (said["minValues"]["c"], said["maxValues"]["c"]) == (min(values), max(values))


def test_long_texts_are_cut_and_short_ones_are_not() -> None:
    said = json.loads(statistics(pa.table({"long": ["b" * 100], "short": ["b" * STRING_PREFIX]})))

    assert len(said["minValues"]["long"]) == STRING_PREFIX
    assert len(said["maxValues"]["long"]) == STRING_PREFIX + 1
    assert said["maxValues"]["short"] == "b" * STRING_PREFIX


def test_fields_of_structs_have_statistics_of_their_own() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    rows = [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}, {"a": 3, "b": {"c": None}}]

    said = json.loads(statistics(pa.table({"s": pa.array(rows, kind)})))

    assert said["minValues"] == {"s": {"a": 1, "b": {"c": "x"}}}
    assert said["maxValues"] == {"s": {"a": 3, "b": {"c": "x"}}}
    assert said["nullCount"] == {"s": {"a": 2, "b": {"c": 3}}}


def test_only_the_first_columns_have_statistics() -> None:
    said = json.loads(statistics(pa.table({f"c{number}": [number] for number in range(DEFAULT_INDEXED_COUNT + 5)})))

    assert len(said["nullCount"]) == DEFAULT_INDEXED_COUNT


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-5, 5),
    pa.string(): st.text(st.sampled_from("ab"), max_size=3),
    pa.bool_(): st.booleans(),
    pa.list_(pa.int32()): st.lists(st.integers(0, 3), max_size=2),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.sampled_from("xy"), st.integers(0, 3)).map(
        lambda entries: list(entries.items())
    ),
}
TYPES = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda kinds: pa.struct([(f"f{number}", kind) for number, kind in enumerate(kinds)])
    ),
    max_leaves=6,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    return st.none() | LEAVES[kind]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(TYPES, min_size=1, max_size=4))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    rows = draw(st.lists(st.fixed_dictionaries({field.name: values_of(field.type) for field in schema}), max_size=5))
    return pa.Table.from_pylist(rows, schema=schema)


def slow_leaves(kind: pa.DataType, values: list[Any], path: str) -> list[tuple[str, pa.DataType, list[Any]]]:
    """Every leaf with its values; a null struct is a null in all its leaves."""
    if not pa.types.is_struct(kind):
        return [(path, kind, values)]
    below = []
    for field in kind:
        inside = [None if value is None else value[field.name] for value in values]
        below += slow_leaves(field.type, inside, f"{path}.{field.name}")
    return below


def flat(record: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


@settings(max_examples=examples(300), deadline=None)
@given(tables(), st.integers(0, 6))
def test_nested_columns_are_counted_by_leaf_like_a_recursive_oracle(data: pa.Table, first: int) -> None:
    said = json.loads(statistics(data, IndexedColumns(max_columns=first)))

    leaves = [
        leaf for field in data.schema for leaf in slow_leaves(field.type, data[field.name].to_pylist(), field.name)
    ]
    indexed = leaves[:first]
    ordered = [(path, [value for value in values if value is not None], kind) for path, kind, values in indexed]
    bounded = [(path, values) for path, values, kind in ordered if values and kind in (pa.int64(), pa.string())]
    assert flat(said["nullCount"]) == {path: values.count(None) for path, _, values in indexed}
    assert flat(said["minValues"]) == {path: min(values) for path, values in bounded}
    assert flat(said["maxValues"]) == {path: max(values) for path, values in bounded}


def test_a_bound_that_json_cannot_represent_leaves_the_other_bound() -> None:
    said = json.loads(statistics(pa.table({"nan": [1.5, math.nan], "top": [2.5, math.inf], "low": [-math.inf, 1.0]})))

    assert said["minValues"] == {"top": 2.5}
    assert said["maxValues"] == {"low": 1.0}


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({}, {"a", "s.x", "s.y", "b"}),
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"a", "s.x"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, set()),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, {"a", "s.x", "s.y", "b"}),
        ({"delta.dataSkippingStatsColumns": "b, s.y"}, {"b", "s.y"}),
        ({"delta.dataSkippingStatsColumns": "`s`", "delta.dataSkippingNumIndexedCols": "1"}, {"s.x", "s.y"}),
        ({"delta.dataSkippingStatsColumns": ""}, set()),
    ],
)
def test_a_tables_statistics_properties_are_respected(properties: dict[str, str], columns: set[str]) -> None:
    data = pa.table({"a": [1], "s": [{"x": 1, "y": 2}], "b": [3]})

    said = json.loads(statistics(data, IndexedColumns.of(properties)))

    for part in ("nullCount", "minValues", "maxValues"):
        assert set(flat(said[part])) == columns
