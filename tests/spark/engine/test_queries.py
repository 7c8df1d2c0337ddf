"""A listener receives every batch of its query; neither a slow nor a failing listener affects the stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine import progress
from deltaworks.engine.driver_host import DriverMetrics
from deltaworks.engine.progress import BatchReport, ProgressLog
from deltaworks.engine.queries import IngestListener, listener_attached
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_storage
from tests.records import record_of
from tests.waiting import PATIENCE_SECONDS, eventually

REPORT = record_of(BatchReport, batch_id=0, rows=5)


def run_three_batches(spark: SparkSession, folder: Path, land: Callable[[Any, int], None]) -> None:
    """Runs three batches of five rows, with the query name of the listener."""
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .load()
        .writeStream.foreachBatch(land)
        .queryName("shop.ingest")
        .option("checkpointLocation", f"file://{folder}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    while len(query.recentProgress) < 3 and query.isActive:
        time.sleep(0.1)
    query.stop()
    failure = query.exception()
    assert failure is None, failure


def test_every_batch_has_a_row_with_its_phases_and_the_end_has_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_TERMINATION_WAIT_SECONDS", PATIENCE_SECONDS)
    storage = local_storage(tmp_path)
    log = ProgressLog(storage, "shop", owner_epoch=1, flush_seconds=0.2, metrics=DriverMetrics(spark))
    log.start()
    listener = IngestListener(
        "shop.ingest", on_progress=log.add_spark_progress, on_idle=log.add_idle, on_terminated=log.add_termination
    )

    with listener_attached(spark, listener):
        run_three_batches(spark, tmp_path, lambda batch, number: log.add(REPORT, spark_batch_id=number))
        log.await_termination()
    log.close()

    written = Lake(storage).rows(paths.pipeline_control("shop", "progress"))
    assert written is not None
    rows = sorted(written.to_pylist(), key=lambda row: row["at"])
    batches = [row for row in rows if row["kind"] == "batch"]
    assert rows[-1]["kind"] == "terminated"
    assert len(batches) >= 3
    for row in batches[:3]:
        assert json.loads(row["phases_ms"])["addBatch"] >= 0
        assert row["end_offset"]
        assert row["jvm_heap_bytes"] > 1 << 20
    assert (log.dropped, listener.failures) == (0, 0)


def test_a_failing_listener_does_not_affect_the_query(spark: SparkSession, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    listener = IngestListener("shop.ingest", on_progress=fails, on_idle=fails, on_terminated=fails)
    seen: list[int] = []

    with listener_attached(spark, listener):
        run_three_batches(spark, tmp_path, lambda batch, number: seen.append(number))
        eventually(lambda: listener.failures >= 3, "it has failed at each batch")

    assert seen[:3] == [0, 1, 2]
