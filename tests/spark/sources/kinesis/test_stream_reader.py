"""The Kinesis source in real queries against a corrected moto: replays, resharding, AvailableNow, limits, expiry."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.sources.spark_formats.kinesis import register
from sandbox.servers.moto_kinesis import MotoKinesis
from tests.spark.sources.kinesis.conftest import QueryHarness
from tests.waiting import eventually

pytestmark = pytest.mark.spark
Make = Callable[..., QueryHarness]


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def test_the_format_is_found_without_registration_and_returns_every_column(make_harness: Make) -> None:
    stage = make_harness()
    stage.put("hello", key="player 1")

    assert stage.drain() == ["hello"]

    (row,) = stage.batches[0].rows
    assert row["stream_name"] == stage.name
    assert row["shard_id"] == "shardId-000000000000"
    assert len(row["sequence_number"]) == 56
    assert row["sub_sequence_number"] is None
    assert row["partition_key"] == "player 1"
    assert row["ordinal"] == 0
    assert abs(row["approximate_arrival_timestamp"].timestamp() - os.stat(stage.root).st_mtime) < 120


@pytest.mark.integration
def test_registering_it_again_changes_nothing(make_harness: Make, spark: SparkSession) -> None:
    stage = make_harness()
    stage.put("a")
    register(spark)
    register(spark)
    assert stage.drain() == ["a"]


@pytest.mark.parametrize("state", ["file", "s3"])
def test_two_actions_get_equal_rows_although_more_arrive_between_them(make_harness: Make, state: str) -> None:
    stage = make_harness(shards=2, state=state)
    stage.put(*numbers(0, 150))
    stage.actions = 2
    stage.between = lambda action: stage.put(*numbers(150, 200)) if len(stage.batches) == 1 else None

    query = stage.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: len(stage.batches) >= 4, "the second batch")
    query.stop()

    first, again, second, second_again = stage.batches[:4]
    assert (len(first.rows), first.digest) == (150, again.digest)
    assert sorted(map(int, second.texts)) == list(range(150, 200))
    assert second.digest == second_again.digest


def test_available_now_drains_ends_and_resumes(make_harness: Make) -> None:
    stage = make_harness(shards=2)
    stage.put(*numbers(0, 50))
    assert sorted(stage.drain(maxRecords=20), key=int) == numbers(0, 50)
    assert len(stage.batches) >= 3
    assert all(len(batch.rows) <= 20 for batch in stage.batches)
    ran = len(stage.batches)
    assert stage.drain() == []
    assert len(stage.batches) == ran, "an idle run makes no batch"
    stage.put("50")
    assert stage.drain() == ["50"]


@pytest.mark.integration
def test_splits_and_merges_under_lag_lose_and_repeat_nothing(make_harness: Make) -> None:
    stage = make_harness()
    stage.put(*numbers(0, 500))
    stage.split(0)
    stage.put(*numbers(500, 1000))
    stage.merge(1, 2)
    stage.put(*numbers(1000, 1500))

    texts = stage.drain(maxRecords=200)

    assert sorted(texts, key=int) == numbers(0, 1500)
    generation = {"0": 0, "1": 1, "2": 1, "3": 2}
    read = [sorted({generation[row["shard_id"][-1]] for row in batch.rows}) for batch in stage.batches if batch.rows]
    assert all(len(each) == 1 for each in read), "no batch has a child beside its parent"
    flat = [each for (each,) in read]
    assert flat == sorted(flat)
    assert set(flat) == {0, 1, 2}


def test_a_running_query_follows_a_stream_that_is_resharded(make_harness: Make) -> None:
    stage = make_harness()
    stage.put(*numbers(0, 100))
    query = stage.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: len(texts(stage)) == 100, "the first records")
    stage.split(0)
    stage.put(*numbers(100, 200))
    eventually(lambda: len(texts(stage)) == 200, "the children's records")
    stage.merge(1, 2)
    stage.put(*numbers(200, 300))
    eventually(lambda: len(texts(stage)) == 300, "the merged shard's records")
    progress = query.lastProgress
    query.stop()

    assert sorted(texts(stage), key=int) == numbers(0, 300)
    assert progress is not None
    report = json.loads(progress.json)["sources"][0]["latestOffset"]
    assert report["gaps"] == 0
    assert set(report["millis_behind_latest"].values()) <= {0}


def texts(stage: QueryHarness) -> list[str]:
    return [text for batch in list(stage.batches) for text in batch.texts]


def test_an_idle_query_makes_no_batches(make_harness: Make) -> None:
    stage = make_harness(shards=2)
    stage.put("a")
    query = stage.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: texts(stage) == ["a"], "the record")
    ran = len(stage.batches)
    query.processAllAvailable()
    eventually(lambda: query.status["message"].startswith("Waiting"), "idling")

    stage.put("b")
    eventually(lambda: texts(stage) == ["a", "b"], "the next record")
    query.stop()

    assert len(stage.batches) <= ran + 2


def test_latest_is_resolved_once_and_survives_a_restart_without_a_batch(make_harness: Make) -> None:
    stage = make_harness()
    stage.put("before")
    assert stage.drain(initialPosition="latest") == []
    stage.put("after")
    assert stage.drain(initialPosition="latest") == ["after"]


def test_rows_are_read_in_tasks_by_several_processes(make_harness: Make) -> None:
    stage = make_harness(shards=4)
    stage.put(*numbers(0, 100))
    stage.drain()

    ends = [json.loads(path.read_text()) for path in Path(stage.root / "state").rglob("*/shardId-*.json")]
    readers = [end["reader"].split("/")[:2] for end in ends if end["rows"]]
    assert {host for host, _ in readers} == {socket.gethostname()}
    assert str(os.getpid()) not in {process for _, process in readers}
    assert len({process for _, process in readers}) > 1


def test_byte_limits_are_respected_and_a_huge_record_gets_its_own_batch(make_harness: Make) -> None:
    stage = make_harness()
    huge = (1 << 20) - 1
    for size in (400, 400, 400, huge, 1, 1):
        stage.put("x", data=b"x" * size)

    stage.drain(maxBytes=1000)

    sizes = [[len(row["data"]) for row in batch.rows] for batch in stage.batches]
    assert [each for each in sizes if each] == [[400, 400], [400], [huge], [1, 1]]


def test_empty_and_unusual_records_arrive_unchanged(make_harness: Make) -> None:
    stage = make_harness()
    stage.put("x", data=b"\x00\xff\xfe not text", key="ключ \u2603")
    stage.put("x", data=b"\xf3\x89\x9a\xc2 looks aggregated, is not")
    stage.drain()

    (batch,) = [batch for batch in stage.batches if batch.rows]
    assert [row["data"] for row in batch.rows] == [
        b"\x00\xff\xfe not text",
        b"\xf3\x89\x9a\xc2 looks aggregated, is not",
    ]
    assert batch.rows[0]["partition_key"] == "ключ \u2603"


def test_a_position_older_than_the_retention_stops_the_query_with_shard_and_range(make_harness: Make) -> None:
    stage = make_harness()
    stage.put("a", "b")
    stage.drain()
    age_state(stage, hours=30)
    stage.age(30)
    stage.put("c")

    with pytest.raises(StreamingQueryException, match="KINESIS_POSITION_EXPIRED") as stopped:
        stage.drain()

    assert "shardId-000000000000" in str(stopped.value)
    assert stage.drain(allowDataLoss="true") == ["c"]
    (gap,) = [json.loads(path.read_text()) for path in Path(stage.root / "state" / "gaps").rglob("*.json")]
    assert gap["shard_id"] == "shardId-000000000000"
    assert stage.drain() == []


def age_state(stage: QueryHarness, *, hours: float) -> None:
    """Make the query's last reading older, in the record that ends its last batch."""
    from datetime import datetime, timedelta

    for path in Path(stage.root / "state").rglob("*/shardId-*.json"):
        end = json.loads(path.read_text())
        since = datetime.fromisoformat(end["end"]["since"]) - timedelta(hours=hours)
        end["end"]["since"] = since.isoformat()
        path.write_text(json.dumps(end))


@pytest.mark.integration
def test_throttling_is_retried(make_harness: Make, switches: MotoKinesis) -> None:
    stage = make_harness()
    stage.put(*numbers(0, 300))
    switches.throttle, switches.reads_per_second = True, 1

    found = stage.drain(maxRecords=50)

    assert sorted(found, key=int) == numbers(0, 300)
    assert switches.throttled > 0


def test_expired_iterators_are_replaced(make_harness: Make, switches: MotoKinesis) -> None:
    stage = make_harness()
    stage.put("a")
    query = stage.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: texts(stage) == ["a"], "the first record")
    # The driver keeps an iterator for an idle shard.
    switches.iterator_seconds = 0.5
    eventually(lambda: switches.expired > 0, "an expired iterator")
    stage.put("b")
    eventually(lambda: texts(stage) == ["a", "b"], "the next record")
    query.stop()

    assert query.exception() is None
    assert [row["ordinal"] for batch in stage.batches for row in batch.rows] == [0, 1]


def test_a_missing_state_location_is_reported_with_its_purpose(make_harness: Make, spark: SparkSession) -> None:
    stage = make_harness()
    given = stage.options()
    del given["stateLocation"]

    with pytest.raises(Exception, match=r"stateLocation.*is required: tasks agree on the end of each batch"):
        spark.readStream.format("kinesis").options(**given).load()
