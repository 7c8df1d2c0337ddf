"""Filters find the same rows in a table's files whatever wrote them, through every reader of the lake."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake, dataset_of, iter_row_batches, rows_of, select_rows
from deltaworks.tables.query import bind_table
from deltaworks.testing import append_rows, local_lake, present
from tests.examples import examples

UTC = dt.UTC
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("user", pa.struct([pa.field("text", pa.string()), pa.field("at", TIME)])),
        pa.field("at", TIME),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
TEXTS = ["", "a", "ab", "b", "x'y", "ß", "z" * 40]
TIMES = [dt.datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) for year in (1601, 1969, 2026, 2500, 9999)]
Row = dict[str, Any]


def row(number: int, text: str | None, at: dt.datetime | None = None) -> Row:
    encoded = None if text is None else text.encode()
    user = {"text": text, "at": at}
    return {"row": number, "name": text, "bytes": encoded, "user": user, "at": at, "tags": [text, None]}


# Writers: each appends or changes rows so that the table holds exactly the given rows.


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def add_file(lake: Lake, rows: pa.Table, **options: Any) -> None:
    """Adds a file as an engine of somebody else writes it, with bounds of the text in the log."""
    folder = Path(lake.storage.prefix, "t")
    if not (folder / "_delta_log").exists():
        DeltaTable.create(str(folder), SCHEMA)
    version = len(list((folder / "_delta_log").glob("*.json")))
    name = f"part-00000-{version}-c000.snappy.parquet"
    # Arrow cannot write some rows of a column of views.
    has_views = "_view" in str(rows.schema)
    pq.write_table(rows, folder / name, row_group_size=1000 if has_views else 2, **options)
    names = [each for each in rows.column("name").cast(pa.string()).to_pylist() if each is not None]
    bounds = {"minValues": {"name": min(names)}, "maxValues": {"name": max(names)}} if names else {}
    stats = {"numRecords": rows.num_rows, **bounds, "nullCount": {"name": rows.num_rows - len(names)}}
    size = os.path.getsize(folder / name)
    action = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    text = json.dumps({"add": {**action, "stats": json.dumps(stats)}})
    (folder / "_delta_log" / f"{version:020d}.json").write_text(text)


def spark(lake: Lake, rows: Sequence[Row]) -> None:
    add_file(lake, table_of(rows), use_deprecated_int96_timestamps=True, store_schema=False)


def with_types(**types: pa.DataType) -> Callable[[Lake, Sequence[Row]], None]:
    """A writer that stores columns in other Arrow types."""

    def write(lake: Lake, rows: Sequence[Row]) -> None:
        table = table_of(rows)
        for name, kind in types.items():
            table = table.set_column(SCHEMA.get_field_index(name), name, table.column(name).cast(kind))
        add_file(lake, table)

    return write


def delta_rs(lake: Lake, rows: Sequence[Row]) -> DeltaTable:
    uri = lake.storage.uri("t")
    write_deltalake(uri, table_of(rows), mode="append")
    return DeltaTable(uri)


def merged(lake: Lake, rows: Sequence[Row]) -> None:
    half = len(rows) // 2
    table = delta_rs(lake, [{**each, "name": "before"} for each in rows[:half]])
    merge = table.merge(table_of(rows), "t.row = s.row", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def updated(lake: Lake, rows: Sequence[Row]) -> None:
    table = delta_rs(lake, [{**each, "row": each["row"] - 1000} for each in rows])
    table.update(updates={"row": "row + 1000"}, predicate="row < 0")


def deleted(lake: Lake, rows: Sequence[Row]) -> None:
    delta_rs(lake, [*rows, row(-1, "gone")]).delete("row = -1")


def compacted(lake: Lake, rows: Sequence[Row]) -> None:
    for each in rows:
        table = delta_rs(lake, [each])
    table.optimize.compact()


def own(lake: Lake, rows: Sequence[Row]) -> None:
    table = lake.ensure("t", SCHEMA, user_metadata="{}")
    lake.append(table, "t", table_of(rows), step=Step("stream", int(table.version()) + 1), user_metadata="{}")


VIEW, BYTES_VIEW = pa.string_view(), pa.binary_view()
WRITERS: dict[str, Callable[[Lake, Sequence[Row]], Any]] = {
    "own": own,
    "spark": spark,
    "delta_rs": delta_rs,
    "merged": merged,
    "updated": updated,
    "deleted": deleted,
    "compacted": compacted,
    "views": with_types(name=VIEW, bytes=BYTES_VIEW, user=pa.struct([("text", VIEW), ("at", TIME)])),
    "list views": with_types(tags=pa.list_(VIEW)),
    "large": with_types(name=pa.large_string(), bytes=pa.large_binary(), tags=pa.large_list(pa.large_string())),
    "dictionaries": with_types(name=pa.dictionary(pa.int32(), pa.string())),
    "large dictionaries": with_types(name=pa.dictionary(pa.int16(), pa.large_string())),
    "milliseconds": with_types(row=pa.int32()),
    "no zone": with_types(at=pa.timestamp("us"), user=pa.struct([("text", VIEW), ("at", pa.timestamp("us"))])),
}


# Predicates: in SQL, as Arrow's expression, and in plain Python.


def literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return f"TIMESTAMPTZ '{value.isoformat()}'"
    if isinstance(value, int):
        return str(value)
    text = value.decode() if isinstance(value, bytes) else value
    quoted = "'" + text.replace("'", "''") + "'"
    return f"encode({quoted})" if isinstance(value, bytes) else quoted


FIELDS: dict[str, tuple[str, pc.Expression, pa.DataType, Callable[[Row], Any]]] = {
    "row": ("row", ds.field("row"), pa.int64(), lambda each: each["row"]),
    "name": ("name", ds.field("name"), pa.string(), lambda each: each["name"]),
    "bytes": ("bytes", ds.field("bytes"), pa.binary(), lambda each: each["bytes"]),
    "user": ('"user".text', pc.field(("user", "text")), pa.string(), lambda each: each["user"]["text"]),
    "at": ('"at"', ds.field("at"), TIME, lambda each: each["at"]),
    "user.at": ('"user"."at"', pc.field(("user", "at")), TIME, lambda each: each["user"]["at"]),
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    "IN": lambda left, right: left == right,
    "LIKE": lambda left, right: left.startswith(right),
    "IS NULL": lambda left, right: False,
}


def predicate(field: str, operator: str, value: Any) -> tuple[str, pc.Expression, Callable[[Row], bool]]:
    sql, expression, kind, read = FIELDS[field]
    scalar = pa.scalar(value, kind)
    conditions = {
        "=": lambda: expression == scalar,
        "<>": lambda: expression != scalar,
        ">": lambda: expression > scalar,
        "<=": lambda: expression <= scalar,
        "IN": lambda: expression.isin(pa.array([value, value], kind)),
        "LIKE": lambda: pc.starts_with(expression, value),
        "IS NULL": expression.is_null,
    }
    texts = {"IS NULL": f"{sql} IS NULL", "IN": f"{sql} IN ({literal(value)}, {literal(value)})"}
    if operator == "LIKE":
        texts["LIKE"] = f"{sql} LIKE {literal(value + '%')}"
    holds = OPERATORS[operator]
    return (
        texts.get(operator, f"{sql} {operator} {literal(value)}"),
        conditions[operator](),
        lambda each: (
            read(each) is None if operator == "IS NULL" else read(each) is not None and holds(read(each), value)
        ),
    )


class Readers:
    """Everything that reads one table with filters."""

    def __init__(self, lake: Lake) -> None:
        table = present(lake.open("t"))
        self._lake, self._table, self._dataset = lake, table, dataset_of(lake, table)
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET TimeZone = 'UTC'")
        bind_table(self._connection, lake, table, schema="p", name="t")

    def found(self, sql: str, condition: pc.Expression) -> dict[str, list[int]]:
        filtered = self._dataset.filter(condition)
        by_sql = self._connection.execute(f"SELECT row FROM p.t WHERE {sql}").fetchall()
        found = {
            "rows_of": rows_of(self._lake, self._table, columns=["row"], filters=condition),
            "filtered twice": filtered.to_table(filter=condition),
        }
        assert filtered.count_rows() == found["rows_of"].num_rows
        numbers = {reader: sorted(rows.column("row").to_pylist()) for reader, rows in found.items()}
        return {"sql": sorted(number for (number,) in by_sql), **numbers}


def assert_same(readers: Readers, rows: Sequence[Row], field: str, operator: str, value: Any) -> None:
    sql, condition, holds = predicate(field, operator, value)
    expected = sorted(each["row"] for each in rows if holds(each))

    found = readers.found(sql, condition)

    assert found == dict.fromkeys(found, expected), sql


ROWS = [row(number, text, at) for number, (text, at) in enumerate(zip(TEXTS, [*TIMES, *TIMES[:2]], strict=True))]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("with_null", [False, True])
def test_text_and_time_filters_find_their_rows_in_files_of_every_writer(
    tmp_path: Path, writer: str, with_null: bool
) -> None:
    lake, rows = local_lake(tmp_path), [*ROWS, *([row(100, None)] if with_null else [])]
    WRITERS[writer](lake, rows)
    readers = Readers(lake)

    # A quote in a text has no more to do with a row without texts.
    for value in ("ab", "not there", *(() if with_null else ("x'y",))):
        for field in ("name", "user"):
            for operator in OPERATORS:
                assert_same(readers, rows, field, operator, value)
        for operator in ("=", ">", "IN"):
            assert_same(readers, rows, "bytes", operator, value.encode())
    for number in (1, -5):
        for operator in ("=", ">", "IN", "IS NULL"):
            assert_same(readers, rows, "row", operator, number)
    for time in (TIMES[0], TIMES[-1], dt.datetime(2000, 1, 1, tzinfo=UTC)):
        for operator in ("=", ">", "IN"):
            assert_same(readers, rows, "at", operator, time)
            assert_same(readers, rows, "user.at", operator, time)


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_are_read_with_the_tables_types_from_files_of_every_writer(tmp_path: Path, writer: str) -> None:
    lake = local_lake(tmp_path)
    WRITERS[writer](lake, ROWS)
    table = present(lake.open("t"))

    rows = rows_of(lake, table)
    parts = pa.concat_tables(iter_row_batches(lake, table, columns=SCHEMA.names))
    selected = select_rows(lake, "t", table, columns=["row", "at"], values={"name": ["ab", "not there"]})

    assert rows.schema.equals(SCHEMA)
    assert sorted(rows.to_pylist(), key=lambda each: each["row"]) == ROWS
    assert sorted(parts.to_pylist(), key=lambda each: each["row"]) == ROWS
    assert selected == [{"row": 2, "at": TIMES[2]}]


def test_a_file_is_not_skipped_for_bounds_that_its_writer_could_not_give(tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    latest = dt.datetime.max.replace(tzinfo=UTC)
    schema = pa.schema([("number", pa.float64()), ("at", TIME), ("text", pa.string())])
    rows = pa.table(
        {"number": [1.0, float("nan")], "at": [latest, TIMES[0]], "text": ["a", "\U0010ffff" * 50]}, schema=schema
    )
    append_rows(lake, "t", rows)
    write_deltalake(lake.storage.uri("t"), rows, mode="append")
    table = present(lake.open("t"))

    for name in schema.names:
        for value in rows.column(name):
            matching = rows.filter(ds.field(name) == value).num_rows
            assert rows_of(lake, table, filters=ds.field(name) == value).num_rows == 2 * matching, (name, value)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(WRITERS)),
            st.lists(
                st.tuples(
                    st.none() | st.sampled_from(TEXTS) | st.text("abz'\"%é", max_size=3),
                    st.none() | st.sampled_from(TIMES),
                ),
                min_size=1,
                max_size=4,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["name", "user", "bytes"]),
    st.sampled_from(sorted(OPERATORS)),
    st.sampled_from([*TEXTS, "not there"]) | st.text("abz'é", max_size=3),
)
def test_filters_over_files_of_mixed_writers_find_the_rows_that_plain_python_finds(
    files: list[tuple[str, list[tuple[str | None, dt.datetime | None]]]], field: str, operator: str, text: str
) -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        lake = local_lake(Path(folder))
        for writer, values in files:
            added = [row(len(rows) + number, *value) for number, value in enumerate(values)]
            WRITERS[writer](lake, added)
            rows += added
        if field == "bytes" and operator == "LIKE":
            operator = ">"

        assert_same(Readers(lake), rows, field, operator, text.encode() if field == "bytes" else text)


#: Values of each type that may partition a table.
PARTITIONS: dict[pa.DataType, list[Any]] = {
    pa.string(): ["a", "x y/ü=%", None],
    pa.int32(): [-1, 7, None],
    pa.int64(): [2**40, 0, None],
    pa.bool_(): [True, False, None],
    pa.date32(): [dt.date(1601, 1, 1), dt.date(2026, 1, 2), None],
    pa.decimal128(10, 2): [decimal.Decimal("1.50"), decimal.Decimal("-2.00"), None],
    TIME: [dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), dt.datetime(1999, 1, 1, tzinfo=UTC), None],
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partitions_of_every_type_are_filtered(tmp_path: Path, kind: pa.DataType) -> None:
    lake, values = local_lake(tmp_path), PARTITIONS[kind]
    rows = pa.table({"part": pa.array(values, kind), "name": ["a", "b", "c"]})
    write_deltalake(lake.storage.uri("t"), rows, partition_by=["part"])
    table = present(lake.open("t"))

    assert sorted(rows_of(lake, table).column("name").to_pylist()) == ["a", "b", "c"]
    for value, name in zip(values, ["a", "b", "c"], strict=True):
        condition = ds.field("part").is_null() if value is None else ds.field("part") == pa.scalar(value, kind)
        assert rows_of(lake, table, filters=condition).to_pylist() == [{"part": value, "name": name}]
        assert rows_of(lake, table, columns=["name"], filters=condition & (ds.field("name") == "z")).num_rows == 0


@pytest.mark.parametrize("partition_by", [[], ["name"]])
def test_a_table_without_rows_has_none_that_match(tmp_path: Path, partition_by: list[str]) -> None:
    lake = local_lake(tmp_path)
    table = lake.ensure("t", SCHEMA, user_metadata="{}", partition_by=partition_by)

    assert rows_of(lake, table, filters=ds.field("name") == "a").num_rows == 0
    assert rows_of(lake, table, filters=ds.field("row") == 1).schema.names == SCHEMA.names
