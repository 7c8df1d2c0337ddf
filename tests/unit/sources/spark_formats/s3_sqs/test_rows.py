"""Rows of declared columns: every event is a row or is rejected, and nothing fails."""

from __future__ import annotations

import io
import tarfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from deltaworks.events.chunks import Payload
from deltaworks.events.reasons import RejectedEvent
from deltaworks.sources.spark_formats.s3_sqs.options import parse_s3_sqs
from deltaworks.sources.spark_formats.s3_sqs.reader import RowReader
from deltaworks.tables.arrow_types import arrow_schema

GIVEN = {"queueUrl": "http://localhost/1/queue", "stateLocation": "s3://lake/state"}


class Query:
    """Reads payloads as rows of declared columns."""

    def __init__(self, columns: dict[str, str], *, form: str = "json", **options: str) -> None:
        source = parse_s3_sqs(GIVEN | {"fileFormat": form} | options).source
        self._reader = RowReader(from_arrow_schema(arrow_schema(columns)), source)
        self.rejected: list[RejectedEvent] = []

    def rows(self, data: bytes) -> list[dict[str, Any]]:
        batches = self._reader.read(Payload(3, "a/day=2026-01-31/k", data), bucket="b", rejected=self.rejected)
        return [row for batch in batches for row in batch.to_pylist()]


def lines(*events: dict[str, Any]) -> bytes:
    return b"\n".join(map(orjson.dumps, events))


def test_a_conversion_error_is_rejected_and_an_undeclared_field_is_ignored() -> None:
    query = Query({"id": "long", "user": "struct<name:string>"})
    assert query.rows(lines({"id": 2, "new": 3, "user": {"name": "a", "age": 9}}, {"id": "x"}, {"ID": 4})) == [
        {"id": 2, "user": {"name": "a"}},
        {"id": None, "user": None},
    ]
    assert [(row.position, row.reasons[0].code) for row in query.rejected] == [(1, "type_mismatch")]


def test_columns_of_a_rows_origin_are_not_read_from_the_event() -> None:
    query = Query({"id": "long", "_key": "string", "_bucket": "string", "day": "date"}, partitionColumns="day")
    assert query.rows(lines({"id": 2, "_key": "mine", "_bucket": "mine", "day": "theirs"})) == [
        {"id": 2, "_key": "a/day=2026-01-31/k", "_bucket": "b", "day": date(2026, 1, 31)}
    ]


def test_texts_of_csv_are_parsed_as_the_declared_types() -> None:
    query = Query({"zip": "long", "price": "double", "ok": "boolean"}, form="csv")
    assert query.rows(b"zip,price,ok\n00501,1.50,true\n7,x,false\n") == [{"zip": 501, "price": 1.5, "ok": True}]
    assert [(row.position, row.reasons[0].path) for row in query.rejected] == [(1, "price")]


def parquet(**columns: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_parquet_values_are_read_and_a_damaged_object_is_rejected() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    data = parquet(
        small=pa.array([7], pa.int16()),
        big=pa.array([2**63], pa.uint64()),
        price=pa.array([Decimal("4.90")], pa.decimal128(9, 2)),
        at=pa.array([at], pa.timestamp("ns", tz="UTC")),
        day=pa.array([date(2026, 1, 31)]),
        f=pa.array([0.1], pa.float32()),
        raw=pa.array([b"x"]),
        tags=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        inner=pa.array([[{"k": True}]]),
        never=pa.array([None], pa.int64()),
    )
    columns = {
        "small": "int",
        "big": "decimal(20,0)",
        "price": "decimal(9,2)",
        "at": "timestamp",
        "day": "date",
        "f": "float",
        "raw": "string",
        "tags": "map<string,long>",
        "inner": "array<struct<k:boolean>>",
        "never": "long",
    }
    query = Query(columns, form="parquet")
    (row,) = query.rows(data)
    assert (row["big"], row["price"], row["at"], row["day"]) == (2**63, Decimal("4.90"), at, date(2026, 1, 31))
    assert (row["tags"], row["inner"], row["raw"]) == ([("a", 1)], [{"k": True}], "78")
    assert query.rejected == []
    assert query.rows(b"PAR1 and no more") == []
    assert [row.reasons[0].code for row in query.rejected] == ["object_unreadable"]


def test_avro_values_are_read() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "v", "type": "int"}]}
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "node", "type": node},
        {"name": "either", "type": ["int", "double"]},
    ]
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    event = {"id": 1, "at": at, "price": Decimal("4.90"), "node": {"v": 1}, "either": 1.5}
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "E", "fields": fields}, [event])
    columns = {
        "id": "long",
        "at": "timestamp",
        "price": "decimal(9,2)",
        "node": "struct<v:int>",
        "either": "double",
    }
    query = Query(columns, form="avro")
    (row,) = query.rows(sink.getvalue())
    assert (row["at"], row["price"], row["node"]) == (at, Decimal("4.90"), {"v": 1})
    assert query.rejected == []


def test_a_too_deeply_nested_event_is_rejected_and_the_next_event_lands() -> None:
    deep = b'{"id": 1, "x": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    query = Query({"id": "long"})
    rows = query.rows(deep + lines({"id": 2}))
    assert len(rows) + len(query.rejected) == 2
    assert rows[-1]["id"] == 2


@pytest.fixture(scope="module")
def documents(malformed_json: Path) -> list[bytes]:
    """Broken logs, and vectors of a test suite for parsers: each alone, and inside an event."""
    with tarfile.open(malformed_json / "test_parsing.tar.gz") as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".json")]
        vectors = [file.read() for file in files if file is not None]
    logs = [path.read_bytes() for path in sorted(malformed_json.glob("*.json*"))]
    return [*logs, *vectors, *(b'{"v": ' + vector + b"}" for vector in vectors if len(vector) < 1_000)]


@pytest.mark.parametrize("kind", ["long", "double", "string", "array<long>"])
def test_malformed_documents_do_not_stop_the_rows(documents: list[bytes], kind: str) -> None:
    query = Query({"v": kind})
    rows = [row for data in documents for row in query.rows(data)]
    assert len(rows) > 100
    assert len(query.rejected) > 100
