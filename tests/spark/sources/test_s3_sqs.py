"""`format("s3-sqs")` in real queries over the protocol of SQS: found by itself, limited, replayed, sharing a state."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltaworks.sources.file_events.log import FileEventLog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.streaming.file_payloads import FileOpener, FileReference
from deltaworks.streaming.parsing.parse import BatchStamp, Parser
from deltaworks.streaming.s3_sqs.unread import TABLE
from deltaworks.tables.lake import Lake
from tests.unit.sources.relay_stage import eventually

pytestmark = pytest.mark.spark

SCHEMA = "id long, at timestamp, name string, price decimal(12,2), tags array<string>, _key string, _position long"
DECLARED: list[dict[str, Any]] = [
    {"name": "id", "path": "id", "type": "long"},
    {"name": "at", "path": "at", "type": "timestamp"},
    {"name": "name", "path": "name", "type": "string"},
    {"name": "price", "path": "price", "type": "decimal(12,2)"},
    {"name": "tags", "path": "tags", "type": "array<string>"},
]
ROWS = [
    {"id": 1, "at": "2026-01-02T03:04:05.000006Z", "name": "ä+ b", "price": 4.99, "tags": ["x", "y"]},
    {"id": 2, "at": "2026-01-02T03:04:05Z", "name": None, "price": None, "tags": None},
]


class Stage:
    """A bucket with its queue, a state beside it, and queries that note what each batch held."""

    def __init__(self, spark: SparkSession, landing: Any, root: Path) -> None:
        self.spark, self.landing, self.root = spark, landing, root
        self.state = f"file://{root}/state"
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []

    def options(self, **changes: str) -> dict[str, str]:
        return {
            "queueUrl": self.landing.queue_url,
            "fileFormat": "json",
            "region": "us-east-1",
            "endpoint": self.landing.endpoint,
            "pathStyle": "true",
            "accessKey": "env:DELTAWORKS_AWS_ACCESS_KEY",
            "secretKey": "env:DELTAWORKS_AWS_SECRET_KEY",
            "stateLocation": self.state,
        } | changes

    def frame(self, *, schema: str = SCHEMA, **options: str) -> DataFrame:
        return self.spark.readStream.format("s3-sqs").schema(schema).options(**self.options(**options)).load()

    def drain(self, *, checkpoint: str = "c", schema: str = SCHEMA, **options: str) -> list[tuple[int, list[Any]]]:
        """What one AvailableNow run gives: the rows of each batch."""
        self.batches = []

        def note(batch: DataFrame, batch_id: int) -> None:
            self.batches.append((batch_id, sorted(batch.toArrow().to_pylist(), key=str)))

        writer = self.frame(schema=schema, **options).writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", f"{self.root}/{checkpoint}").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return self.batches

    def keys(self) -> list[str]:
        return [row["_key"] for _, rows in self.batches for row in rows]

    def unread(self) -> list[tuple[str, int, str]]:
        found = Lake(StorageSpec(root=self.state)).rows(TABLE)
        rows = [] if found is None else found.to_pylist()
        return sorted((row["key"], row["position"], row["reason"]) for row in rows)


@pytest.fixture
def stage(spark: SparkSession, landing: Any, tmp_path: Path) -> Stage:
    # Messages in flight at a run that ended come back at once, and those in hand stay there.
    landing.sqs.set_queue_attributes(QueueUrl=landing.queue_url, Attributes={"VisibilityTimeout": "30"})
    return Stage(spark, landing, tmp_path)


def test_a_queue_is_drained_in_limited_batches_and_messages_are_gone(stage: Stage) -> None:
    for number in range(5):
        stage.landing.put(f"games/{number}.json", body=b'{"id": %d}{"id": 7}' % number)
    batches = stage.drain(maxFilesPerTrigger="2")
    assert [len({row["_key"] for row in rows}) for _, rows in batches] == [2, 2, 1]
    assert sorted(stage.keys()) == sorted(f"games/{number}.json" for number in range(5) for _ in range(2))
    assert stage.landing.waiting() == (0, 0)
    assert stage.drain() == []
    stage.landing.put("games/5.json", body=b'{"id": 5}')
    assert [(batch, [row["id"] for row in rows]) for batch, rows in stage.drain()] == [(3, [5])]


def test_a_batch_read_again_gives_the_same_rows_and_notes_nothing_twice(stage: Stage) -> None:
    stage.landing.put("games/1.json", body=b'{"id": 1}{"id": "no number"}{broken')
    stage.landing.put("games/2.json", body=b"")
    first = stage.drain()
    assert [row["id"] for _, rows in first for row in rows] == [1]
    noted = [
        ("games/1.json", 1, "type_mismatch"),
        ("games/1.json", 2, "malformed"),
        ("games/2.json", -1, "object_empty"),
    ]
    assert stage.unread() == noted
    (stage.root / "c" / "commits" / "0").unlink()
    for leftover in (stage.root / "c" / "commits").glob(".0.crc"):
        leftover.unlink()
    again = stage.drain()
    assert again == first
    assert stage.unread() == noted


def test_queries_that_share_a_state_each_read_every_file_of_one_queue(stage: Stage) -> None:
    stage.landing.put("games/1.json", "edits/2.json", "games/3.csv", body=b'{"id": 1}')
    stage.drain()
    assert sorted(stage.keys()) == ["edits/2.json", "games/1.json", "games/3.csv"]
    stage.drain(checkpoint="other", glob="games/*.json")
    assert stage.keys() == ["games/1.json"]


def parquet() -> bytes:
    rows = [row | {"at": dt.datetime.fromisoformat(str(row["at"]))} for row in ROWS]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


BODIES: dict[str, list[bytes]] = {
    "json": [
        b"\n".join(map(orjson.dumps, ROWS)),
        gzip.compress(orjson.dumps(ROWS)),
        b'{"id": 3, "price": 1.234}{"id": 4, "at": "never"}[]7{"id": 5',
        b"",
        parquet(),
    ],
    "csv": [b'id,at,name,price,tags\n1,2026-01-02T03:04:05Z,"a,b",4.99,"[""x""]"\n2,,,,\n3,x\n', b"id,id\n1,2\n"],
    "tsv": [b"#Version: 1.0\n#Fields: id at name\n1\t2026-01-02T03:04:05Z\tb\n2\t-\t-\n3\n", b"1\t2\n"],
    "parquet": [parquet(), gzip.compress(parquet()), parquet()[:200], b'{"id": 1}'],
}


def through_the_pipeline(stage: Stage, form: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a pipeline's table and of its quarantine, for the objects of the state's log."""
    spec = PipelineSpec.model_validate(
        {
            "pipeline": "shop",
            "description": "",
            "owner": "",
            "source": {
                "kind": "s3_sqs",
                "relay": "landing",
                "bucket": stage.landing.bucket,
                "format": form,
                "partition_columns": ["day"],
            },
            "event": {"name": {"constant": "e"}, "time": {"path": "_partition.day"}},
            "tables": [{"name": "events", "catch_all": True, "columns": DECLARED}],
        }
    )
    log = FileEventLog(Lake(StorageSpec(root=stage.state)), "s3_sqs").read(0).to_pylist()
    opener = FileOpener.of(stage.landing.storage, spec.source)
    payloads = [opener(FileReference(row["seq"], row["key"], row["etag"])) for row in log]
    for table, rows in Parser(spec).parse(payloads, BatchStamp(0, 0, "fp")):
        keys = {row["seq"]: row["key"] for row in log}
        for row in rows.to_pylist():
            yield table, row | {"_key": keys[row["_seq"]]}


@pytest.mark.parametrize("form", sorted(BODIES))
def test_the_same_objects_give_the_same_rows_as_through_a_pipeline(stage: Stage, form: str) -> None:
    for number, body in enumerate(BODIES[form]):
        stage.landing.put(f"day=2026-01-0{number + 1}/object", body=body)
    stage.drain(fileFormat=form)
    names = [column["name"] for column in DECLARED] + ["_key", "_position"]
    found = sorted(tuple(str(row[name]) for name in names) for _, rows in stage.batches for row in rows)
    wanted: list[tuple[str, ...]] = []
    unread: list[tuple[str, int, str]] = []
    for table, row in through_the_pipeline(stage, form):
        if table == "events":
            wanted.append(tuple(str(row[name]) for name in names))
        else:
            unread.append((row["_key"], row["_position"], ",".join(reason["code"] for reason in row["reasons"])))
    assert found == sorted(wanted)
    assert stage.unread() == sorted(unread)
    assert len(found) >= 2
    assert unread


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stateLocation": ""}, "which files were announced"),
        ({"queueUrl": ""}, "the queue that S3 announces objects to"),
        ({"fileFormat": "orc"}, "format"),
        ({"maxfiles": "3"}, "is not known"),
    ],
)
def test_an_option_that_is_wrong_is_named_with_what_it_is_for(stage: Stage, changes: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match="SOURCE_OPTION_INVALID") as raised:
        stage.drain(**changes)
    assert said in str(raised.value)


def test_a_state_serves_one_queue(stage: Stage) -> None:
    stage.landing.put("games/1.json", body=b'{"id": 1}')
    stage.drain()
    other = stage.landing.sqs.create_queue(QueueName=stage.landing.bucket + "-other")["QueueUrl"]
    with pytest.raises(PySparkException, match="STATE_OF_ANOTHER_QUEUE"):
        stage.drain(checkpoint="other", queueUrl=other)


def test_a_running_query_takes_what_lands(stage: Stage) -> None:
    seen: list[int] = []

    def note(batch: DataFrame, _batch_id: int) -> None:
        seen.extend(batch.toArrow().column("id").to_pylist())

    query = stage.frame().writeStream.foreachBatch(note).option("checkpointLocation", f"{stage.root}/c").start()
    try:
        for number in range(3):
            stage.landing.put(f"games/{number}.json", body=b'{"id": %d}' % number)
            eventually(lambda n=number: n in seen, f"object {number} arrived")
    finally:
        query.stop()
    assert sorted(seen) == [0, 1, 2]
