"""Files of a table, and the workers and memory that write them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.duckdb_session import free_memory_bytes
from deltaworks.tables.file_workers import count_rows, table_rows, with_row_counts
from deltaworks.tables.files import data_file_path, partition_value_text, split_by_partition, write_file
from deltaworks.tables.files_commit import StateDifference, TargetState
from deltaworks.tables.log import row_count, state_at
from deltaworks.tables.table_swap import table_content
from deltaworks.testing import append_rows, local_lake, present
from tests.unit.tables.log_model import KEY, LogModel

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
    append_rows(lake, "t", data, partition_by=["name"])

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
    append_rows(lake, "t", [{"amount": amount, "at": at, "text": "b" * 40}], schema=schema)

    for wanted in (
        ds.field("amount") >= pa.scalar(amount),
        ds.field("amount") <= pa.scalar(amount),
        ds.field("at") >= pa.scalar(at),
        ds.field("at") == pa.scalar(at),
        ds.field("text") >= "b" * 40,
    ):
        assert lake.rows("t", filters=wanted).num_rows == 1
    assert lake.rows("t", filters=ds.field("text") > "c").num_rows == 0


@pytest.fixture
def model(tmp_path: Path) -> LogModel:
    model = LogModel(tmp_path)
    model.add(3)
    model.add(4, stats="none")
    return model


def opened(model: LogModel) -> DeltaTable:
    return present(model.lake.open(KEY))


def test_rows_that_statistics_lack_are_counted_in_the_files(model: LogModel) -> None:
    files = list(state_at(model.lake, open_objects(model.lake.storage), KEY).files.values())

    assert count_rows(model.lake, KEY, files) == table_rows(model.lake, KEY, opened(model)) == 7
    assert sorted(map(row_count, with_row_counts(model.lake, KEY, files))) == [3, 4]  # type: ignore[type-var]
    assert count_rows(model.lake, KEY, []) == 0


def test_rows_that_a_deletion_vector_marks_are_not_counted(model: LogModel) -> None:
    (added,) = (added for added in model.actions.values() if "stats" not in added)
    vector = {"storageType": "u", "pathOrInlineDv": "x" * 20, "sizeInBytes": 1, "cardinality": 3}

    assert count_rows(model.lake, KEY, [{**added, "deletionVector": vector}]) == 1


@pytest.mark.parametrize("damage", ["missing", "no Parquet", "elsewhere"])
def test_rows_that_cannot_be_counted_are_rejected_with_the_file(model: LogModel, damage: str) -> None:
    (name,) = (name for name, added in model.actions.items() if "stats" not in added)
    added = model.actions[name]
    if damage == "missing":
        (model.folder / name).unlink()
    elif damage == "no Parquet":
        (model.folder / name).write_bytes(b"x")
    else:
        added = {**added, "path": f"s3://other/{name}"}

    with pytest.raises(ContractError, match=f"ROWS_UNKNOWN.*{name}"):
        count_rows(model.lake, KEY, [added])
    if damage != "elsewhere":
        with pytest.raises(ContractError, match=f"ROWS_UNKNOWN.*{name}"):
            table_rows(model.lake, KEY, opened(model))


def test_the_content_of_a_table_and_a_difference_say_that_rows_are_unknown(model: LogModel) -> None:
    state = state_at(model.lake, open_objects(model.lake.storage), KEY)
    content = table_content(opened(model))
    difference = StateDifference.between(state, TargetState({}))

    assert (content.rows, content.files) == (None, 2)
    assert content.bytes == state.bytes
    assert (difference.files_removed, difference.rows_removed, difference.rows_added) == (2, None, 0)


def test_statistics_beside_the_count_are_retained(model: LogModel) -> None:
    (added,) = (added for added in model.actions.values() if "stats" not in added)
    bounds = {"minValues": {"n": 0}, "maxValues": {"n": 3}}

    (counted,) = with_row_counts(model.lake, KEY, [{**added, "stats": json.dumps(bounds)}])

    assert json.loads(counted["stats"]) == {**bounds, "numRecords": 4}


@pytest.fixture
def container(tmp_path: Path) -> Path:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 300000\nactive_file 100000\n")
    return tmp_path


def test_unused_and_droppable_memory_within_a_containers_limit_is_free(container: Path) -> None:
    assert free_memory_bytes(container) == 400_000


def test_a_container_over_its_limit_leaves_nothing(container: Path) -> None:
    (container / "memory.current").write_text("1500000\n")
    assert free_memory_bytes(container) == 0


@pytest.mark.parametrize("limit", ["max", None])
def test_without_a_limit_the_machine_decides(
    container: Path, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is None:
        (container / "memory.max").unlink()
    else:
        (container / "memory.max").write_text(f"{limit}\n")
    total = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: total._replace(available=12_345))
    assert free_memory_bytes(container) == 12_345
