"""Data files and statistics: correct bounds, and no lost rows in partitions."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from deltaworks.control.provenance import user_metadata
from deltaworks.tables.commit import Step
from deltaworks.tables.files import data_file_path, partition_value_text, split_by_partition, write_file
from deltaworks.testing import local_lake

UTC = dt.UTC
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
            assert values == {name: partition_value_text(row[name]) for name in partition_by}
    assert len({tuple(values.items()) for values, _ in split}) == len(split)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), ("", None), (True, "true"), (7, "7"), (dt.date(2024, 2, 29), "2024-02-29"), ("null", "null")],
)
def test_partition_values_are_written_as_the_log_writes_them(value: object, text: str | None) -> None:
    assert partition_value_text(value) == text


def test_rows_with_special_characters_in_partition_values_are_read_back(tmp_path: Path) -> None:
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
    lake = local_lake(tmp_path)
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


def test_a_written_file_has_its_metadata(tmp_path: Path) -> None:
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
    lake = local_lake(tmp_path)
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
