"""Scans: deleted rows are excluded by every reader, and partitions of every type are predicates."""

from __future__ import annotations

import datetime as dt
import json
import struct
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError

from deltaworks.tables.changes import partition_predicate, sql_literal
from deltaworks.tables.features import has_deletion_vectors, reasons_against_rewriting, reasons_to_use_spark
from deltaworks.tables.lake import Lake, duckdb_source, iter_row_batches, rows_of
from deltaworks.testing import append_rows, local_lake, present

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
_BASE85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FEATURE = ["deletionVectors"]


def vector(rows: list[int]) -> dict[str, object]:
    """An inline deletion vector as in Delta's protocol: one roaring bitmap with one container."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return {"storageType": "i", "pathOrInlineDv": base85(data), "sizeInBytes": len(data), "cardinality": len(rows)}


def base85(data: bytes) -> str:
    text = ""
    for (word,) in struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4)):
        text += "".join(_BASE85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of six rows in one file; the second and fifth are deleted."""
    lake = local_lake(tmp_path)
    append_rows(lake, "t", pa.table({"name": list("uvwxyz"), "size": list(range(6)), "at": [0] * 6}, schema=SCHEMA))
    log = tmp_path / "t" / "_delta_log"
    added = next(json.loads(line)["add"] for line in (log / f"{1:020d}.json").open() if '"add"' in line)
    actions = [
        {"protocol": dict(minReaderVersion=3, minWriterVersion=7, readerFeatures=_FEATURE, writerFeatures=_FEATURE)},
        {"remove": {"path": added["path"], "dataChange": True, "deletionTimestamp": 0}},
        {"add": {**added, "deletionVector": vector([1, 4])}},
    ]
    (log / f"{2:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return lake


def test_rows_deleted_by_vectors_are_not_read(lake: Lake) -> None:
    every = lake.rows("t")
    some = lake.rows("t", columns=["name"], filters=ds.field("name").isin(["v", "w"]) | (ds.field("size") > 4))

    assert every is not None
    assert some is not None
    assert every.schema.equals(SCHEMA)
    assert every.column("name").to_pylist() == ["u", "w", "x", "z"]
    assert some.to_pydict() == {"name": ["w", "z"]}


def test_duckdb_can_scan_a_table_with_vectors_repeatedly(lake: Lake) -> None:
    table = present(lake.open("t"))
    connection = duckdb.connect(":memory:")
    connection.register("rows_", duckdb_source(lake, table))

    for _ in range(2):
        assert connection.execute("SELECT sum(one.size) FROM rows_ AS one JOIN rows_ USING (name)").fetchall() == [
            (10,)
        ]
    with pytest.raises(DeltaProtocolError):
        table.to_pyarrow_dataset()


def test_a_table_with_vectors_is_appended_by_delta_rs_and_rewritten_by_spark_only(lake: Lake) -> None:
    table = present(lake.open("t"))
    assert has_deletion_vectors(table)
    assert reasons_to_use_spark(table) == []
    assert reasons_against_rewriting(table) == ["deletion vectors"]

    append_rows(lake, "t", [{"name": "new", "size": 7, "at": 0}], schema=SCHEMA, number=2)

    assert sorted(present(lake.rows("t")).column("name").to_pylist()) == ["new", "u", "w", "x", "z"]


PLACES = ["x y", "ü/%:=", "a+b", "%20", "2026-01-01", None]
YEARS = [1, 1601, 1969, 2026, 2500, 9999]


def delete_second_rows(folder: Path) -> None:
    """Deletes the second row of every file by a deletion vector."""
    log = folder / "_delta_log"
    version = len(list(log.glob("*.json")))
    lines = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    added = [line["add"] for line in lines if "add" in line]
    protocol = dict(minReaderVersion=3, minWriterVersion=7, readerFeatures=_FEATURE, writerFeatures=_FEATURE)
    removes = [{"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 0}} for add in added]
    adds = [{"add": {**add, "deletionVector": vector([1])}} for add in added]
    actions = [{"protocol": protocol}, *removes, *adds]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def rows_by_every_reader(lake: Lake, condition: pc.Expression, sql: str) -> list[list[str]]:
    table = present(lake.open("t"))
    with duckdb.connect(":memory:") as connection:
        connection.register("rows_", duckdb_source(lake, table))
        by_sql = connection.execute(f"SELECT name FROM rows_ WHERE {sql}").fetchall()
    parts = [part.filter(condition) for part in iter_row_batches(lake, table, columns=table.schema().to_arrow().names)]
    filtered = rows_of(lake, table, columns=["name"], filters=condition)
    return [
        sorted(name for (name,) in by_sql),
        sorted(filtered.column("name").to_pylist()),
        sorted(name for part in parts for name in part.column("name").to_pylist()),
    ]


def test_vectors_of_files_with_any_name_are_applied(tmp_path: Path) -> None:
    lake = local_lake(tmp_path / "ein % Ordner")
    names = [f"{place} {number}" for place in PLACES for number in range(3)]
    rows = pa.table({"place": [place for place in PLACES for _ in range(3)], "name": names})
    write_deltalake(lake.storage.uri("t"), rows, partition_by=["place"])
    delete_second_rows(Path(lake.storage.prefix, "t"))

    expected = sorted(name for name in names if not name.endswith("1"))

    assert rows_by_every_reader(lake, ds.field("name") > "", "name > ''") == [expected] * 3
    assert rows_by_every_reader(lake, ds.field("place") == "%20", "place = '%20'") == [["%20 0", "%20 2"]] * 3


def test_times_of_every_year_are_read_from_a_table_with_vectors(tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    schema = pa.schema([("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    times = [dt.datetime(year, 12, 31, 1, 2, 3, 456789, tzinfo=dt.UTC) for year in YEARS]
    rows = pa.table({"name": [str(year) for year in YEARS], "at": times}, schema=schema)
    folder = tmp_path / "t"
    DeltaTable.create(str(folder), schema)
    pq.write_table(rows, folder / "f.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    size = (folder / "f.parquet").stat().st_size
    add = {"path": "f.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    stats = json.dumps({"numRecords": len(YEARS)})
    (folder / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"add": {**add, "stats": stats}}))
    delete_second_rows(folder)

    for year, time in zip(YEARS, times, strict=True):
        expected = [] if year == YEARS[1] else [str(year)]
        found = rows_by_every_reader(lake, ds.field("at") == time, f"\"at\" = TIMESTAMPTZ '{time.isoformat()}'")
        assert found == [expected] * 3


TYPES = {"org_id": "string", "day": "date", "n": "long", "ok": "boolean"}


def test_one_column_is_a_list_and_null_a_condition_of_its_own() -> None:
    assert partition_predicate({(("org_id", "b"),), (("org_id", "a"),)}, TYPES) == "`org_id` IN ('a', 'b')"
    assert partition_predicate({(("day", "2026-01-01"),), (("day", None),)}, TYPES) == (
        "(`day` IS NULL OR `day` IN (DATE'2026-01-01'))"
    )
    assert partition_predicate({(("ok", "true"),)}, TYPES) == "`ok` IN (true)"


def test_several_columns_are_named_together() -> None:
    partitions = {(("n", "1"), ("org_id", "a")), (("n", "2"), ("org_id", None))}

    assert (
        partition_predicate(partitions, TYPES)
        == "(`n` IN (1) AND `org_id` IN ('a')) OR (`n` IN (2) AND `org_id` IS NULL)"
    )


def test_a_table_without_partitions_has_a_predicate_that_is_true() -> None:
    assert partition_predicate({()}, TYPES) == "true"


@pytest.mark.parametrize("value", ["it's", "a\\b", "\\'", "tab\there"])
def test_every_text_is_a_single_literal(value: str) -> None:
    # DuckDB reads the same escapes behind an E.
    (found,) = duckdb.sql(f"SELECT E{sql_literal(value, 'string')}").fetchall()

    assert found == (value,)
