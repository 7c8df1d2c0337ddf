"""`format("s3-sqs")` in real queries with SQS: discovered, limited, replayed, and with two options alone.

The byte limit, marked `integration`, has its twin in tests/unit/sources/objects/test_file_event_log.py, and the options
have theirs in tests/unit/sources/spark_formats/test_options.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.specs.storage import StorageSpec
from tests.spark.sources.s3_sqs_harness import S3SqsHarness
from tests.unit.sources.conftest import aws_endpoint, landing
from tests.waiting import eventually

SCHEMA = "id long, at timestamp, _key string, _position long"


@pytest.fixture
def harness(spark: SparkSession, landing: Any, tmp_path: Path) -> S3SqsHarness:
    # Messages in flight at a run that ended come back at once, and those in hand stay there.
    landing.returns_after(30)
    return S3SqsHarness(spark, landing, tmp_path)


def test_a_queue_is_drained_in_limited_batches_and_its_messages_are_deleted(harness: S3SqsHarness) -> None:
    for number in range(5):
        harness.landing.put(f"games/{number}.json", body=b'{"id": %d}{"id": 7}' % number)
    batches = harness.drain(schema=SCHEMA, maxFilesPerTrigger="2")
    assert [len({row["_key"] for row in rows}) for _, rows in batches] == [2, 2, 1]
    assert sorted(harness.keys()) == sorted(f"games/{number}.json" for number in range(5) for _ in range(2))
    assert harness.landing.waiting() == (0, 0)
    harness.landing.put("games/5.json", body=b'{"id": 5}')
    assert [(batch, [row["id"] for row in rows]) for batch, rows in harness.drain(schema=SCHEMA)] == [(3, [5])]


@pytest.mark.integration
def test_a_batch_respects_its_byte_limit_and_a_large_file_gets_its_own(harness: S3SqsHarness) -> None:
    for number, size in enumerate((10, 10, 100, 10)):
        harness.landing.put(f"games/{number}.json", body=b'{"id": %d}' % number + b" " * (size - 9))
    batches = harness.drain(schema=SCHEMA, maxBytesPerTrigger="25")
    found = [[row["id"] for row in rows] for _, rows in batches]
    assert sorted(each for ids in found for each in ids) == [0, 1, 2, 3]
    assert [2] in found
    assert max(map(len, found)) == 2


def test_a_batch_read_again_returns_the_same_rows_and_records_nothing_twice(harness: S3SqsHarness) -> None:
    harness.landing.put("games/1.json", body=b'{"id": 1}{"id": "no number"}{broken')
    harness.landing.put("games/2.json", body=b"  ")
    first = harness.drain(schema=SCHEMA)
    assert [row["id"] for _, rows in first for row in rows] == [1]
    noted = [
        ("games/1.json", 1, "type_mismatch"),
        ("games/1.json", 2, "malformed"),
        ("games/2.json", -1, "object_empty"),
    ]
    assert harness.unread() == noted
    (harness.root / "c" / "commits" / "0").unlink()
    for leftover in (harness.root / "c" / "commits").glob(".0.crc"):
        leftover.unlink()
    again = harness.drain(schema=SCHEMA)
    assert again == first
    assert harness.unread() == noted


@pytest.mark.integration
def test_queries_that_share_a_state_each_read_every_file_of_one_queue(harness: S3SqsHarness) -> None:
    harness.landing.put("games/1.json", "edits/2.json", "games/3.csv", body=b'{"id": 1}')
    harness.drain(schema=SCHEMA)
    assert sorted(harness.keys()) == ["edits/2.json", "games/1.json", "games/3.csv"]
    harness.drain(schema=SCHEMA, checkpoint="other", glob="games/*.json")
    assert harness.keys() == ["games/1.json"]


@pytest.mark.integration
def test_the_next_query_waits_for_the_lease_of_a_killed_one(harness: S3SqsHarness) -> None:
    """What it leaves is a lease nobody renews and messages nobody deletes."""
    harness.landing.put("games/1.json", body=b'{"id": 1}')
    objects = open_objects(StorageSpec(root=harness.state))
    killed = Lease(objects, relay_control("s3_sqs", "lease.json"), ttl_seconds=10, name="s3_sqs")
    killed.acquire(wait_seconds=0)
    killed._stop.set()
    harness.landing.returns_after(3)
    assert harness.landing.queue().receive()
    assert [row["id"] for _, rows in harness.drain(schema=SCHEMA) for row in rows] == [1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queueUrl": ""}, "the queue that S3 announces objects to"),
        pytest.param({"fileFormat": "orc"}, "fileFormat", marks=pytest.mark.integration),
        pytest.param({"maxfiles": "3"}, "is not known", marks=pytest.mark.integration),
    ],
)
def test_an_invalid_option_is_named_with_its_purpose(harness: S3SqsHarness, changes: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match="SOURCE_OPTION_INVALID") as raised:
        harness.drain(schema=SCHEMA, **changes)
    assert said in str(raised.value)


def test_a_state_serves_one_queue(harness: S3SqsHarness) -> None:
    harness.landing.put("games/1.json", body=b'{"id": 1}')
    harness.drain(schema=SCHEMA)
    other = harness.landing.sqs.create_queue(QueueName=harness.landing.bucket + "-other")["QueueUrl"]
    with pytest.raises(PySparkException, match="STATE_OF_ANOTHER_QUEUE"):
        harness.drain(schema=SCHEMA, checkpoint="other", queueUrl=other)


def test_a_running_query_reads_landed_objects(harness: S3SqsHarness) -> None:
    seen: list[int] = []

    def note(batch: DataFrame, _batch_id: int) -> None:
        seen.extend(batch.toArrow().column("id").to_pylist())

    writer = harness.frame(schema=SCHEMA).writeStream.foreachBatch(note)
    query = writer.option("checkpointLocation", f"{harness.root}/c").start()
    try:
        for number in range(3):
            harness.landing.put(f"games/{number}.json", body=b'{"id": %d}' % number)
            eventually(lambda n=number: n in seen, f"object {number} arrived")
    finally:
        query.stop()
    assert sorted(seen) == [0, 1, 2]


__all__ = ["aws_endpoint", "landing"]
PROJECT = Path(__file__).resolve().parents[3]
JARS = str(PROJECT / "include" / "jars" / "target" / "jars" / "*")


class Published:
    """A folder with a checkpoint and an output, and the processes over it."""

    def __init__(self, landing: Any, root: Path) -> None:
        self.landing, self.root = landing, root
        self.running: subprocess.Popen[bytes] | None = None

    def start(self, how: str, *, class_path: str = JARS) -> subprocess.Popen[bytes]:
        """A process of the query; its output is below the folder."""
        settings = {
            "AWS_ENDPOINT_URL": self.landing.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "PYTHONPATH": str(PROJECT / "include"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 600m pyspark-shell",
        }
        command = [sys.executable, str(Path(__file__).with_name("published_query.py")), self.landing.queue_url]
        command += [f"{self.root}/checkpoint", f"{self.root}/output", class_path, how]
        with (self.root / "log").open("ab") as log:
            # A group of its own, so that JVM and Python workers end with it, whichever way it ends.
            self.running = subprocess.Popen(
                command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True
            )
        return self.running

    def run(self, **options: str) -> str:
        """Run it to the end of the queue; the end of what it said, where it failed."""
        process = self.start("once", **options)
        code = process.wait(300)
        text = (self.root / "log").read_text(errors="replace").replace("\r", "\n").splitlines()
        return "" if code == 0 else "\n".join(line[:500] for line in text if not line.startswith("[Stage"))[-20_000:]

    def kill(self) -> None:
        """End the driver, its JVM and its workers at once, without a word to any of them."""
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def ids(self) -> list[int]:
        """The ids in the output's committed files."""
        import pyarrow.parquet as pq

        batches = [path for path in (self.root / "output" / "_spark_metadata").glob("*") if path.name.isdigit()]
        files = [
            json.loads(line)["path"]
            for batch in batches
            for line in batch.read_text(encoding="utf-8").splitlines()
            if line.startswith("{")
        ]
        tables = [pq.read_table(path.removeprefix("file://")) for path in files]
        return sorted(each for table in tables for each in table.column("id").to_pylist())


@pytest.fixture
def published(landing: Any, tmp_path: Path) -> Iterator[Published]:
    landing.returns_after(20)
    harness = Published(landing, tmp_path)
    yield harness
    harness.kill()


@pytest.mark.integration
def test_a_killed_query_with_two_options_neither_loses_nor_duplicates_rows_on_restart(
    published: Published,
) -> None:
    for number in range(4):
        published.landing.put(f"clicks/{number}.json", body=b'{"id": %d}' % number)
    published.start("on")
    eventually(lambda: published.ids() == [0, 1, 2, 3], "the first objects are read", seconds=240)
    for number in range(4, 24):
        published.landing.put(f"clicks/{number}.json", body=b'{"id": %d}' % number)
    eventually(lambda: len(published.ids()) > 4, "a batch with later objects has landed", seconds=60)
    published.kill()
    # Announced again, as S3 may do, and once more while nothing runs.
    published.landing.put("clicks/24.json", body=b'{"id": 24}')
    published.landing.put("clicks/3.json", body=b'{"id": 3}')

    if said := published.run():
        pytest.fail(said)

    assert published.ids() == list(range(25))
    assert published.landing.waiting() == (0, 0)
    states = [path.name for path in (published.root / "checkpoint" / "sources").iterdir()]
    assert [name.startswith("s3_sqs-") for name in states] == [True]


@pytest.mark.integration
def test_without_the_jars_the_query_requires_a_state_location(published: Published) -> None:
    published.landing.put("clicks/1.json", body=b'{"id": 1}')

    said = published.run(class_path="")

    assert "SOURCE_OPTION_INVALID" in said
    assert "the option 'stateLocation' is required" in said
    assert published.landing.waiting() == (1, 0)
