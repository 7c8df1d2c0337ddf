"""Rows of inferred columns: the complete content of an event is in its row or in its leftovers, and nothing fails."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from deltaworks.errors import ContractError, TransientError
from deltaworks.events.chunks import Payload
from deltaworks.events.inference.column_types import infer_columns
from deltaworks.events.inference.sampling import Sampler
from deltaworks.events.inference.schema_versions import SchemaVersion
from deltaworks.events.reasons import RejectedEvent
from deltaworks.sources.spark_formats.s3_sqs.inferred_schema import (
    NewColumnDetector,
    NewFieldsError,
    schema_versions,
    spark_schema,
)
from deltaworks.sources.spark_formats.s3_sqs.options import S3SqsOptions, SchemaOptions
from deltaworks.sources.spark_formats.s3_sqs.rows import RowReader
from tests.examples import examples
from tests.unit.events.inference.test_shapes import EVENTS

GIVEN = {
    "queueUrl": "http://localhost/1/queue",
    "stateLocation": "s3://lake/state",
    "inferredSchemaLocation": "/nowhere",
}


class Query:
    """A source whose columns were found in some payloads."""

    def __init__(self, sample: Iterable[bytes], *, form: str = "json", **options: str) -> None:
        self.options = S3SqsOptions.parse(GIVEN | {"fileFormat": form, "schemaEvolutionMode": "rescue"} | options)
        assert self.options.inference is not None
        self.inference: SchemaOptions = self.options.inference
        sampler = Sampler(self.options.source, typed=self.inference.infer_types)
        self.sample = sampler.sample((Payload(0, "k", data) for data in sample), max_bytes=1 << 30)
        found = infer_columns(self.sample.shape, typed=self.inference.infer_types)
        self.version = SchemaVersion(number=1, inferred_columns=found, hints=self.inference.hints)
        self.schema: StructType = spark_schema(self.version, self.inference)
        self.unread: list[RejectedEvent] = []

    @property
    def types(self) -> dict[str, str]:
        return {field.name: field.dataType.simpleString() for field in self.schema}

    def watch(self) -> NewColumnDetector:
        return NewColumnDetector(self.version, self.inference, self.options.source)

    def rows(self, data: bytes, *, watch: NewColumnDetector | None = None) -> list[dict[str, Any]]:
        reader = RowReader(self.schema, self.options.source, inference=self.inference, detector=watch)
        batches: Iterator[pa.RecordBatch] = reader.read(Payload(3, "a/k.json", data), bucket="b", rejected=self.unread)
        return [row for batch in batches for row in batch.to_pylist()]


def lines(*events: dict[str, Any]) -> bytes:
    return b"\n".join(map(orjson.dumps, events))


def left(row: dict[str, Any]) -> Any:
    return row["_rescued_data"] and json.loads(row["_rescued_data"])["fields"]


def told(value: Any) -> Any:
    """A value without the nulls of its objects."""
    if isinstance(value, dict):
        return {name: told(each) for name, each in value.items() if each is not None}
    return [told(each) for each in value] if isinstance(value, list) else value


def put_together(row: Any, rest: Any) -> Any:
    """What an event was: the row's columns with what was left over."""
    if isinstance(row, dict) and isinstance(rest, dict):
        return {name: put_together(row.get(name), rest.get(name)) for name in {**row, **rest}}
    return row if rest is None else rest


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4), st.lists(EVENTS, max_size=4))
def test_no_content_of_an_event_is_lost_for_any_sample(
    first: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    query = Query([lines(*first)])
    rows = query.rows(lines(*first, *later))
    assert query.unread == []
    for event, row in zip([*first, *later], rows, strict=True):
        rest = left(row) or {}
        columns = {name: value for name, value in row.items() if name != "_rescued_data"}
        assert told(put_together(told(columns), told(rest))) == told(event)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.lists(EVENTS, max_size=4))
def test_a_detector_reports_a_field_until_it_is_a_column(
    first: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        rows = _watched_to_the_end(first, later, place)

    assert len(rows) == len(later)


def _watched_to_the_end(first: list[dict[str, Any]], later: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    """The rows of the later events once the query has a column for each field that can have one."""
    query = Query([lines(*first)], schemaEvolutionMode="addNewColumns", inferredSchemaLocation=place)
    schema_versions(query.inference).update(lambda _: query.version)
    for attempt in range(20):
        try:
            return query.rows(lines(*later), watch=query.watch())
        except NewFieldsError:
            error = query.watch().evolution_error("s3://b/k", [Payload(3, "k", lines(*later))])
            assert isinstance(error, TransientError)
            newest = schema_versions(query.inference).latest()
            assert newest is not None
            assert (error.condition, newest.number) == ("SCHEMA_COLUMNS_ADDED", attempt + 2)
            query.version, query.schema = newest, spark_schema(newest, query.inference)
    pytest.fail("the query ends again and again")


def test_conversion_errors_new_fields_and_other_cases_are_leftovers_with_their_object() -> None:
    query = Query([lines({"id": 1, "user": {"name": "a", "age": 3}, "tags": [{"k": 1}]})])
    event = {"ID": 7, "id": "x", "user": {"name": 5, "age": 4, "Age": 9}, "tags": [{"k": 1}, {"z": 2}], "more": {}}
    (row,) = query.rows(lines(event))
    assert (row["id"], row["user"], row["tags"]) == (None, {"name": None, "age": 4}, [{"k": 1}, {"k": None}])
    assert json.loads(row["_rescued_data"]) == {
        "object": "s3://b/a/k.json",
        "fields": {"ID": 7, "id": "x", "user": {"name": 5, "Age": 9}, "tags": [{"k": 1}, {"z": 2}], "more": {}},
    }
    assert query.unread == []


def test_a_field_named_like_an_origin_column_is_a_leftover() -> None:
    query = Query([lines({"id": 1})], schemaHints="_key STRING, day DATE", partitionColumns="day")
    (row,) = query.rows(lines({"id": 2, "_key": "mine", "day": "theirs", "_rescued_data": 1}))
    assert (row["_key"], row["day"]) == ("a/k.json", None)
    assert left(row) == {"_key": "mine", "day": "theirs", "_rescued_data": 1}


def test_without_rescue_a_conversion_error_is_rejected_and_a_new_field_ignored() -> None:
    query = Query([lines({"id": 1})], schemaEvolutionMode="none")
    assert query.rows(lines({"id": 2, "new": 3}, {"id": "x"})) == [{"id": 2}]
    assert [(row.position, row.reasons[0].code) for row in query.unread] == [(1, "type_mismatch")]


def test_without_types_every_column_is_json_text() -> None:
    query = Query([lines({"a": 1, "b": {"c": [True]}, "d": "x", "e": []})], inferColumnTypes="false")
    assert set(query.types.values()) == {"string"}
    (row,) = query.rows(lines({"a": 1.5, "b": {"c": [None]}, "d": "x", "e": None}))
    assert row == {"a": "1.5", "b": '{"c":[null]}', "d": "x", "e": None, "_rescued_data": None}


def test_csv_columns_are_typed_if_texts_round_trip_and_other_texts_are_kept() -> None:
    query = Query([b"id,zip,price,ok\n1,01234,4.5,true\n2,99999,5,false\n"], form="csv")
    assert query.types == {
        "id": "bigint",
        "zip": "string",
        "price": "double",
        "ok": "boolean",
        "_rescued_data": "string",
    }
    rows = query.rows(b"id,zip,price,ok,new\n3,1,x,true,7\n99999999999999999999,1,1,,\n007,1,1.50,True,\n")
    assert [left(row) for row in rows] == [
        {"price": "x", "new": "7"},
        {"id": "99999999999999999999"},
        {"id": "007"},
    ]
    assert (rows[2]["price"], rows[2]["ok"]) == (1.5, True)


def test_a_hinted_column_converts_like_a_declared_one() -> None:
    query = Query([b"zip,n\n01234,1\n"], form="csv", schemaHints="zip BIGINT")
    (row,) = query.rows(b"zip,n\n00501,001\n")
    assert (row["zip"], row["n"], left(row)) == (501, None, {"n": "001"})


def test_an_integer_beyond_double_precision_is_a_leftover() -> None:
    query = Query([lines({"d": 1.5, "in": [{"d": 0.5}]})])
    assert query.types["d"] == "double"
    rows = query.rows(lines({"d": 2**53 + 1}, {"in": [{"d": 2**60}]}, {"d": 2**53}))
    assert [left(row) for row in rows] == [{"d": 2**53 + 1}, {"in": [{"d": 2**60}]}, None]
    assert [row["d"] for row in rows] == [None, None, 2.0**53]


def test_fail_on_new_columns_names_them_as_hints_and_stores_no_version(tmp_path: Path) -> None:
    query = Query(
        [lines({"id": 1, "u": {"n": 1}})], schemaEvolutionMode="failOnNewColumns", inferredSchemaLocation=str(tmp_path)
    )
    with pytest.raises(NewFieldsError):
        query.rows(lines({"id": 2}, {"u": {"m": 1.5}}), watch=query.watch())
    error = query.watch().evolution_error("s3://b/k", [Payload(3, "k", lines({"u": {"m": 1.5}, "x y": True}))])
    assert isinstance(error, ContractError)
    assert error.condition == "SCHEMA_COLUMNS_NEW"
    assert 'schemaHints: "u.m double, `x y` boolean"' in error.hint
    assert list(tmp_path.iterdir()) == []
    with_hints = Query([lines({"id": 1, "u": {"n": 1}})], schemaHints="u.m double, `x y` boolean")
    assert left(with_hints.rows(lines({"u": {"m": 1.5}, "x y": True}))[0]) is None


def parquet(**columns: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_parquet_has_the_types_it_declares() -> None:
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
        nothing=pa.array([None], pa.null()),
    )
    query = Query([data], form="parquet")
    (row,) = query.rows(data)
    assert query.types == {
        "small": "int",
        "big": "decimal(20,0)",
        "price": "decimal(9,2)",
        "at": "timestamp",
        "day": "date",
        "f": "float",
        "raw": "string",
        "tags": "map<string,bigint>",
        "inner": "array<struct<k:boolean>>",
        "never": "bigint",
        "_rescued_data": "string",
    }
    assert (row["big"], row["price"], row["at"], row["day"]) == (2**63, Decimal("4.90"), at, date(2026, 1, 31))
    assert (row["tags"], row["inner"], row["_rescued_data"]) == ([("a", 1)], [{"k": True}], None)


def test_a_parquet_column_without_values_is_new_and_a_damaged_object_is_not() -> None:
    query = Query([parquet(a=pa.array([1]))], form="parquet", schemaEvolutionMode="addNewColumns")
    with pytest.raises(NewFieldsError):
        query.rows(parquet(a=pa.array([1]), b=pa.array([None], pa.int32())), watch=query.watch())
    assert query.rows(b"PAR1 and no more", watch=query.watch()) == []
    assert [row.reasons[0].code for row in query.unread] == ["object_unreadable"]


def test_avro_has_the_types_it_declares() -> None:
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
    query = Query([sink.getvalue()], form="avro")
    (row,) = query.rows(sink.getvalue())
    assert query.types == {
        "id": "bigint",
        "at": "timestamp",
        "price": "decimal(9,2)",
        "node": "struct<v:int>",
        "either": "double",
        "_rescued_data": "string",
    }
    assert (row["at"], row["price"], row["node"]) == (at, Decimal("4.90"), {"v": 1})
    assert left(row) is None


def test_a_too_deeply_nested_event_is_rejected_and_the_next_event_lands() -> None:
    deep = b'{"id": 1, "x": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    query = Query([lines({"id": 1})])
    rows = query.rows(deep + lines({"id": 2}))
    assert len(rows) + len(query.unread) == 2
    assert rows[-1]["id"] == 2


@pytest.fixture(scope="module")
def documents(malformed_json: Path) -> list[bytes]:
    """Broken logs, and vectors of a test suite for parsers: each alone, and inside an event."""
    with tarfile.open(malformed_json / "test_parsing.tar.gz") as archive:
        files = [archive.extractfile(member) for member in archive if member.name.endswith(".json")]
        vectors = [file.read() for file in files if file is not None]
    logs = [path.read_bytes() for path in sorted(malformed_json.glob("*.json*"))]
    return [*logs, *vectors, *(b'{"v": ' + vector + b"}" for vector in vectors if len(vector) < 1_000)]


@pytest.mark.parametrize("typed", ["true", "false"])
@pytest.mark.parametrize("mode", ["rescue", "none", "addNewColumns"])
def test_malformed_documents_stop_neither_the_sample_nor_the_rows(
    documents: list[bytes], mode: str, typed: str
) -> None:
    small = [data for data in documents if len(data) < 10_000]
    query = Query(small, schemaEvolutionMode=mode, inferColumnTypes=typed)
    watch = query.watch() if mode == "addNewColumns" else None
    rows = [row for data in small for row in query.rows(data, watch=watch)]
    assert len(rows) > 100
    assert (
        len(rows) + sum(each.position >= 0 for each in query.unread)
        == query.sample.events + query.sample.skipped_values
    )


def test_malformed_documents_are_rescued_with_columns_inferred_from_one_event(documents: list[bytes]) -> None:
    query = Query([lines({"v": 1})])
    rows = [row for data in documents for row in query.rows(data)]
    assert sum(row["_rescued_data"] is not None for row in rows) > 100
    assert all(isinstance(row["v"], int | None) for row in rows)
