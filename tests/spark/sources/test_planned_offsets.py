"""Batches planned by the driver: no rows, no jobs, no Spark processes, and errors with their conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ContractError
from deltaworks.sources.record_source import planned_frame
from tests.waiting import PATIENCE_SECONDS


class Counted:
    """Batches of ten up to `last`; asked for more than `fails_at`, it fails."""

    def __init__(self, last: int, *, fails_at: int | None = None) -> None:
        self.last, self.fails_at = last, fails_at
        self.asked: list[int] = []

    def initial_offset(self) -> dict[str, Any]:
        return {"n": 0}

    def next_end_offset(self, start: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(start["n"])
        if self.fails_at is not None and start["n"] >= self.fails_at:
            raise ContractError("LOG_ROLLED_BACK", "It is shorter than it was.", hint="Start over.")
        end = min(start["n"] + 10, self.last)
        return None if end == start["n"] else {"n": end}

    def latest_offset(self) -> dict[str, Any] | None:
        return {"n": self.last}

    def prepare_for_available_now(self) -> None:
        self.last = min(self.last, 35)


def start(spark: SparkSession, planner: Counted, folder: Path, batches: list[int]) -> StreamingQuery:
    def note(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch_id)

    writer = planned_frame(spark, planner).writeStream.foreachBatch(note)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def offsets(folder: Path) -> list[str]:
    files = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [file.read_text().splitlines()[2] for file in files]


def test_batches_end_at_planned_offsets_and_a_restart_continues_after_the_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: list[int] = []
    assert start(spark, Counted(100), tmp_path, batches).awaitTermination(int(PATIENCE_SECONDS))
    assert offsets(tmp_path) == ['{"n": 10}', '{"n": 20}', '{"n": 30}', '{"n": 35}']

    again = Counted(35)
    assert start(spark, again, tmp_path, batches).awaitTermination(int(PATIENCE_SECONDS))
    assert batches == [0, 1, 2, 3], "there was nothing new"
    assert set(again.asked) == {35}


@pytest.mark.parametrize("counted", [False, True], ids=["as it is", "with a look at its rows"])
def test_no_batch_needs_a_job_or_a_python_process(spark: SparkSession, tmp_path: Path, counted: bool) -> None:
    def processes() -> set[int]:
        return {process.pid for process in psutil.Process().children(recursive=True)}

    rows: list[int] = []

    def note(batch: DataFrame, batch_id: int) -> None:
        rows.append(batch.count() if counted else 0)

    running = processes()
    writer = planned_frame(spark, Counted(30)).writeStream.foreachBatch(note)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_SECONDS))

    assert rows == [0, 0, 0]
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))
    assert bool(jobs) is counted, "Spark runs a job for whoever asks for rows, and only then"
    assert processes() - running == set()


def test_an_error_of_the_planner_ends_the_query_with_its_condition(spark: SparkSession, tmp_path: Path) -> None:
    batches: list[int] = []
    query = start(spark, Counted(30, fails_at=20), tmp_path, batches)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(int(PATIENCE_SECONDS))

    error = as_deltaworks_error(raised.value)
    assert (error.condition, error.retryable, error.hint) == ("LOG_ROLLED_BACK", False, "Start over.")
    assert batches == [0, 1]


def test_a_planner_belongs_to_one_query_and_ends_with_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = planned_frame(spark, Counted(30))
    first = frame.writeStream.foreachBatch(lambda batch, batch_id: None).trigger(availableNow=True)
    assert first.option("checkpointLocation", str(tmp_path / "a")).start().awaitTermination(int(PATIENCE_SECONDS))
    second = frame.writeStream.foreachBatch(lambda batch, batch_id: None).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="no planner of offsets"):
        second.option("checkpointLocation", str(tmp_path / "b")).start().awaitTermination(int(PATIENCE_SECONDS))
