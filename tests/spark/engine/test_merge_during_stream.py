"""A MERGE during a continuous append commits with the write turn, and never without it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.testing import present
from tests.unit.engine.hold_harness import TABLES, Harness
from tests.waiting import PATIENCE_SECONDS, eventually

LEVEL_AFTER_MERGE = 100


class Stream:
    """Processes batches continuously in a thread, like a stream with a backlog."""

    def __init__(self, stage: Harness) -> None:
        self._stage = stage
        self._processor = stage.processor()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.landed = 0
        self.error: Exception | None = None

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._stage.land(self._processor, self.landed)
                self.landed += 1
            self._processor.serve_requests()
        except Exception as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, batches: int) -> None:
        eventually(lambda: self.landed >= batches or self.error is not None, f"{batches} batches landed")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def stage(tmp_path: Path) -> Harness:
    return Harness.at(tmp_path)


@contextlib.contextmanager
def streaming(stage: Harness) -> Iterator[Stream]:
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=60, name="shop")
    lease.acquire(wait_seconds=1)
    stream = Stream(stage)
    stream.start()
    try:
        stream.wait_for(5)
        yield stream
    finally:
        stream.end()
        lease.release()


def merge(spark: SparkSession, stage: Harness, batches: int) -> None:
    session = spark.newSession()
    orders = DeltaTable.forPath(session, stage.storage.spark_uri(paths.table("shop", "orders")))
    changed = session.range(batches).withColumnRenamed("id", "seq")
    same = F.col("target._seq") == F.col("source.seq")
    update = {"level": F.lit(LEVEL_AFTER_MERGE)}
    orders.alias("target").merge(changed.alias("source"), same).whenMatchedUpdate(set=update).execute()


def test_a_merge_commits_at_its_first_attempt_during_a_running_stream(spark: SparkSession, stage: Harness) -> None:
    with streaming(stage) as stream:
        before = stream.landed
        with write_turn(stage.objects, "shop", "orders", by="merge", wait_seconds=PATIENCE_SECONDS) as turn:
            during = stream.landed
            merge(spark, stage, before)
            turn.check()
            went_on = stream.landed - during
        stream.wait_for(stream.landed + 5)

    assert stream.error is None
    assert went_on > 0, "the other tables did not continue"
    for name in TABLES:
        assert stage.landed(name) == stage.expected(*range(stream.landed)), name
    rows = present(stage.lake.rows(paths.table("shop", "orders")))
    levels = {(row["_seq"] < before, row["level"]) for row in rows.to_pylist()}
    assert levels == {(True, LEVEL_AFTER_MERGE), (False, 7)}
    outcomes = [outcome for _, outcome in stage.steps("orders")]
    assert outcomes.count("held") == outcomes.count("caught_up") > 0


def test_without_a_turn_the_same_merge_conflicts_with_the_stream(spark: SparkSession, stage: Harness) -> None:
    with streaming(stage) as stream:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Delta's own, told apart below
            merge(spark, stage, stream.landed)
        assert as_deltaworks_error(caught.value).condition == "DELTA_CONFLICT"

    assert stream.error is None
