"""Data files and their statistics: bounds that bound, partitions that lose nothing."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from deltaworks.control.provenance import user_metadata
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.files import (
    STATISTICS_COLUMNS,
    STRING_PREFIX,
    data_file_path,
    partition_text,
    split_by_partition,
    statistics,
    write_file,
)
from deltaworks.tables.lake import Lake

UTC = dt.UTC
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.builds(
    lambda character, count, tail: character * count + tail,
    st.sampled_from(["a", "é", "\U0010ffff", "\x00", "~"]),
    st.integers(30, 36),
    st.text(st.sampled_from("a\U0010ffff"), max_size=4),
)
INSTANTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59), timezones=st.just(UTC))
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
    """A bound as a reader of the log understands it."""
    if pa.types.is_timestamp(kind):
        return dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    if pa.types.is_floating(kind):
        return float(text)
    return dt.date.fromisoformat(text) if pa.types.is_date(kind) else text


def in_order(value: Any) -> Any:
    """Texts are ordered by their UTF-8 bytes, by Spark as by delta-rs."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def column_values(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind, strategy = COLUMNS[draw(st.sampled_from(sorted(COLUMNS)))]
    return kind, draw(st.lists(st.none() | strategy, max_size=6))


@settings(max_examples=400, deadline=None)
@given(column_values())
@example((pa.string(), ["a" * 32 + "\U0010ffff" + "x"]))
@example((pa.float64(), [math.nan, 1.0]))
@example((pa.float64(), [math.inf]))
@example((pa.decimal128(38, 10), [decimal.Decimal("0.1234567891"), decimal.Decimal("9007199254740993.0000000001")]))
@example((pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)]))
def test_bounds_bound_every_value_and_nulls_are_counted(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    data = pa.table({"c": pa.array(values, kind)})

    said = json.loads(statistics(data), parse_float=decimal.Decimal, parse_constant=_no_json)

    present = [value for value in data["c"].to_pylist() if value is not None]
    assert said["numRecords"] == len(values)
    assert said["nullCount"]["c"] == len(values) - len(present)
    assert ("c" in said["minValues"]) == ("c" in said["maxValues"])
    if "c" in said["minValues"]:
        low, high = (read_bound(said[side]["c"], kind) for side in ("minValues", "maxValues"))
        for value in present:
            assert in_order(low) <= in_order(value) <= in_order(high)


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
    said = json.loads(statistics(pa.table({f"c{number}": [number] for number in range(STATISTICS_COLUMNS + 5)})))

    assert len(said["nullCount"]) == STATISTICS_COLUMNS


PARTITIONED = pa.schema([("day", pa.date32()), ("name", pa.string()), ("flag", pa.bool_()), ("row", pa.int64())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "day": st.none() | st.sampled_from([dt.date(2024, 1, 1), dt.date(1970, 1, 1)]),
            "name": st.none() | st.sampled_from(["a", "", "a/b", "ü=%", "null"]),
            "flag": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)


@settings(deadline=None)
@given(ROWS, st.sampled_from([[], ["day"], ["name"], ["name", "day"], ["flag", "name"]]), st.integers(1, 4))
def test_splitting_loses_no_row_and_puts_each_into_its_partition(
    rows: list[dict[str, Any]], partition_by: list[str], chunk: int
) -> None:
    numbered = [{**row, "row": number} for number, row in enumerate(rows)]
    parts = [pa.Table.from_pylist(numbered[at : at + chunk], PARTITIONED) for at in range(0, len(rows), chunk)]
    data = pa.concat_tables(parts) if parts else PARTITIONED.empty_table()

    split = split_by_partition(data, partition_by)

    found = [row for _, part in split for row in part.to_pylist()]
    assert sorted(row["row"] for row in found) == list(range(len(rows)))
    for values, part in split:
        assert list(values) == partition_by
        for row in part.to_pylist():
            assert values == {name: partition_text(row[name]) for name in partition_by}
    assert len({tuple(values.items()) for values, _ in split}) == len(split)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (True, "true"), (7, "7"), (dt.date(2024, 2, 29), "2024-02-29"), ("null", "null")],
)
def test_partition_values_are_written_as_the_log_writes_them(value: object, text: str | None) -> None:
    assert partition_text(value) == text


def test_rows_with_awkward_partition_values_are_read_back(tmp_path: Path) -> None:
    names = [
        "plain",
        "a/b",
        "a b",
        "ü",
        "%2F",
        "=",
        "..",
        "x" * 300,
        "__HIVE_DEFAULT_PARTITION__",
        "'\"",
        "\n",
        "~",
        None,
    ]
    schema = pa.schema([("name", pa.string()), ("row", pa.int64())])
    data = pa.table({"name": names, "row": range(len(names))}, schema=schema)
    lake = Lake(StorageSpec(root=f"file://{tmp_path}"))
    metadata = user_metadata(pipeline="p", batch=1, operation="append")
    table = lake.ensure("t", schema, user_metadata=metadata, partition_by=["name"])

    lake.append(table, "t", data, step=Step("s", 1), user_metadata=metadata)

    read = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted(read, key=lambda row: row["row"]) == data.to_pylist()
    for number, name in enumerate(names):
        wanted = ds.field("name").is_null() if name is None else ds.field("name") == name
        found = DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset().to_table(filter=wanted)
        assert found["row"].to_pylist() == [number]


def test_paths_are_unique_and_stay_below_the_table() -> None:
    paths = {data_file_path({"name": "../../etc"}) for _ in range(100)}

    assert len(paths) == 100
    assert all(".." not in path and path.count("/") == 1 for path in paths)


def test_a_written_file_says_what_it_is(tmp_path: Path) -> None:
    data = pa.table({"day": pa.array([dt.date(2024, 1, 1)] * 3), "a": [1, 2, 3]})

    written = write_file(fs.LocalFileSystem(), str(tmp_path), data, partition={"day": "2024-01-01"})

    on_disk = tmp_path / written.path
    assert written.path.startswith("day=2024-01-01/part-")
    assert on_disk.stat().st_size == written.size
    assert ds.dataset(on_disk).to_table().to_pydict() == {"a": [1, 2, 3]}
    assert (written.rows, written.partition) == (3, {"day": "2024-01-01"})


def test_bounds_let_deltalake_skip_files_and_never_rows(tmp_path: Path) -> None:
    amount = decimal.Decimal("1234567890123456789012345678.1234567891")
    at = dt.datetime(2024, 1, 1, 1, 1, 1, 123_456, tzinfo=UTC)
    schema = pa.schema([("amount", pa.decimal128(38, 10)), ("at", pa.timestamp("us", tz="UTC")), ("text", pa.string())])
    lake = Lake(StorageSpec(root=f"file://{tmp_path}"))
    metadata = user_metadata(pipeline="p", batch=1, operation="append")
    table = lake.ensure("t", schema, user_metadata=metadata)
    rows = pa.Table.from_pylist([{"amount": amount, "at": at, "text": "b" * 40}], schema)
    lake.append(table, "t", rows, step=Step("s", 1), user_metadata=metadata)

    for wanted in (
        ds.field("amount") >= pa.scalar(amount),
        ds.field("amount") <= pa.scalar(amount),
        ds.field("at") >= pa.scalar(at),
        ds.field("at") == pa.scalar(at),
        ds.field("text") >= "b" * 40,
    ):
        assert lake.rows("t", filters=wanted).num_rows == 1
    assert lake.rows("t", filters=ds.field("text") > "c").num_rows == 0
