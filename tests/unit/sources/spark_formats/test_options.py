"""`format("s3-sqs")`: valid and rejected options, and rows of declared columns."""

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

from deltaworks.errors import ConfigError
from deltaworks.events.chunks import Payload
from deltaworks.events.reasons import RejectedEvent
from deltaworks.sources.spark_formats.data_sources import S3SqsDataSource
from deltaworks.sources.spark_formats.options import FileQueryOptions, parse_s3_sqs
from deltaworks.sources.spark_formats.reader import RowReader
from deltaworks.tables.arrow_types import arrow_schema

GIVEN = {"queueUrl": "http://localhost/1/queue", "fileFormat": "json", "stateLocation": "s3://lake/state"}


def parsed(**changes: str) -> FileQueryOptions:
    return parse_s3_sqs(GIVEN | changes)


def test_option_names_are_case_insensitive_and_defaults_are_as_documented() -> None:
    options = parse_s3_sqs({name.lower(): value for name, value in GIVEN.items()})
    assert (options.source.max_files_per_batch, options.source.max_bytes_per_batch) == (1000, 256 << 20)
    assert (options.max_partitions, options.relay.receive_threads, options.relay.overwrites) == (8, 2, "latest")
    assert options.any_bucket
    assert options.messaging.region == "us-east-1"


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs-fips.us-east-2.amazonaws.com", "us-east-2"),
        ("sqs.ap-southeast-2.api.aws", "ap-southeast-2"),
        ("vpce-0a1b-c2d3.sqs.eu-central-1.vpce.amazonaws.com", "eu-central-1"),
        ("eu-west-2.queue.amazonaws.com", "eu-west-2"),
        ("queue.amazonaws.com", "us-east-1"),
        ("localhost:5000", "us-east-1"),
    ],
)
def test_the_default_region_is_the_queues(host: str, region: str) -> None:
    options = parsed(queueUrl=f"https://{host}/123456789012/clicks")
    assert (options.messaging.region, options.state.region, options.landing("a").region) == (region,) * 3
    assert parsed(queueUrl=f"https://{host}/1/clicks", region="sa-east-1").messaging.region == "sa-east-1"


def test_a_queue_without_a_region_uses_the_aws_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert parsed().messaging.region == "eu-north-1"
    monkeypatch.setenv("QUEUE", "https://sqs.eu-west-1.amazonaws.com/1/clicks")
    assert parsed(queueUrl="env:QUEUE").messaging.region == "eu-west-1"


def state_below(checkpoint: str, **changes: str) -> str:
    """Where the state is of a query that is given none."""
    return parsed(stateLocation="", sourcecheckpointlocation=checkpoint, **changes).state.root


def test_the_default_state_location_is_below_the_checkpoint() -> None:
    root = state_below("s3a://lake/checkpoint/sources/0")
    assert root.startswith("s3://lake/checkpoint/sources/s3_sqs-")
    assert state_below("file:/data/c/sources/0").startswith("file:///data/c/sources/s3_sqs-")
    assert parsed(sourceCheckpointLocation="file:/data/c/sources/0").state.root == "s3://lake/state"


def test_sources_of_one_query_share_a_state_if_they_share_the_queue() -> None:
    first, second = "file:/c/sources/0", "file:/c/sources/1"
    assert state_below(first) == state_below(second)
    assert state_below(first) != state_below(second, queueUrl="http://localhost/1/other")


def test_a_checkpoint_that_cannot_hold_a_state_is_named() -> None:
    with pytest.raises(ConfigError, match="'stateLocation' is required with a checkpoint at hdfs://n/c/sources"):
        state_below("hdfs://n/c/sources/0")


def test_a_state_location_is_required_without_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match=r"'stateLocation' is required: .*the jars of include/jars"):
        parsed(stateLocation="")


@pytest.mark.parametrize("name", ["queueUrl", "fileFormat"])
def test_required_options_are_reported_with_their_purpose(name: str) -> None:
    with pytest.raises(ConfigError, match=f"SOURCE_OPTION_INVALID.*'{name}' is required: "):
        parsed(**{name: ""})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"maxFiles": "3"}, "'maxFiles' is not known; known are queueUrl, "),
        ({"fileFormat": "orc"}, "'fileFormat' is wrong"),
        ({"fileFormat": "text"}, "text needs a pattern"),
        ({"pattern": "(?P<a>.)"}, "text needs a pattern"),
        ({"maxFilesPerTrigger": "none"}, "'maxFilesPerTrigger' is wrong"),
        ({"maxBytesPerTrigger": "0"}, "'maxBytesPerTrigger' is wrong"),
        ({"maxPartitions": "many"}, "'maxPartitions' must be an integer"),
        ({"pathStyle": "yes"}, "'pathStyle' must be true or false"),
        ({"stateLocation": "ftp://lake/state"}, "'stateLocation' is wrong: write s3://bucket/prefix"),
        ({"fetchParallelism": "0"}, "'fetchParallelism' is wrong"),
        ({"partitionColumns": "day,9"}, "'partitionColumns' is wrong"),
        ({"fileFormat": "csv", "delimiter": "||"}, "'delimiter' is wrong"),
        ({"fileFormat": "csv", "columns": "a,a"}, "'columns' is wrong"),
        ({"accessKey": "AKIAIOSFODNN7EXAMPLE"}, "'accessKey' is wrong"),
        ({"secretKey": "env:SECRET"}, "both access_key and secret_key"),
        ({"overwrites": "sometimes"}, "'overwrites' is wrong"),
        ({"glob": "a{b"}, "unbalanced or nested braces"),
    ],
)
def test_invalid_options_are_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match="SOURCE_OPTION_INVALID") as raised:
        parsed(**changes)
    assert said in raised.value.message
    assert "AKIA" not in raised.value.message


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("s3a://lake/state", "s3://lake/state"),
        ("/data/state", "file:///data/state"),
        ("file:/data/state", "file:///data/state"),
    ],
)
def test_a_state_location_may_be_written_as_spark_writes_it(given: str, root: str) -> None:
    assert parsed(stateLocation=given).state.root == root


def test_queue_buckets_and_state_share_client_options_unless_the_state_has_its_own() -> None:
    options = parsed(
        endpoint="http://localhost:5000",
        region="eu-west-1",
        accessKey="env:KEY",
        secretKey="env:SECRET",
        pathStyle="true",
        stateEndpoint="http://localhost:9000",
    )
    landing = options.landing("clicks")
    assert (landing.root, landing.endpoint, landing.path_style) == ("s3://clicks", "http://localhost:5000", True)
    assert (options.state.endpoint, options.state.region) == ("http://localhost:9000", "eu-west-1")
    assert str(options.messaging.secret_key) == str(landing.secret_key) == "env:SECRET"


def test_column_names_replace_a_header() -> None:
    assert parsed(fileFormat="csv").source.csv.header
    without = parsed(fileFormat="csv", columns="a, b", delimiter=";").source.csv
    assert (without.header, without.columns, without.delimiter) == (False, ("a", "b"), ";")
    assert parsed(fileFormat="tsv", columns="a,b").source.tsv.columns == ("a", "b")


@pytest.mark.parametrize("name", ["inferSchema", "inferredSchemaLocation", "schemaHints", "schemaEvolutionMode"])
def test_options_of_schema_inference_name_what_to_write_instead(name: str) -> None:
    said = rf"SOURCE_OPTION_INVALID.*'{name}' is not supported: .*\.schema\(\"id long, at timestamp\"\) instead"
    with pytest.raises(ConfigError, match=said):
        parsed(**{name.lower(): "true"})
    with pytest.raises(ConfigError, match=said):
        S3SqsDataSource({name: "true"}).schema()


def test_a_schema_is_required() -> None:
    with pytest.raises(ConfigError, match=r"SOURCE_OPTION_INVALID.*no schema") as raised:
        S3SqsDataSource(GIVEN).schema()
    assert '.schema("id long, at timestamp")' in raised.value.hint


WITHOUT_FORMAT = {"queueUrl": "http://localhost/1/queue", "stateLocation": "s3://lake/state"}


class Query:
    """Reads payloads as rows of declared columns."""

    def __init__(self, columns: dict[str, str], *, form: str = "json", **options: str) -> None:
        source = parse_s3_sqs(WITHOUT_FORMAT | {"fileFormat": form} | options).source
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
