"""A driver of a cluster with two workers that runs pipelines on command and records what was read, and where.

Reads one JSON command per line and answers each with one line. `hold` waits at the nth occurrence of a point of the
engine until a file `go` exists; `fail` raises there; `kill` ends the process group there with kill -9. `broken` selects
a source of `broken_sources`, so that a test can see its check fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import broken_sources
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control.job import as_deltaworks_error
from deltaworks.engine.runner import IngestRun
from deltaworks.events.chunks import Payload
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.base import OffsetRange, Slice, Source, Task
from deltaworks.sources.registry import open_source
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.sources.worker_crashes import CrashIsolation
from deltaworks.specs.project import load_catalog
from deltaworks.tables.spark_session import build_session
from tests.batch_points import call_at_points

_PATIENCE_SECONDS = 90


def noted(task: Task, folder: str, run: str, batch_id: int) -> Task:
    """Records in a file which payloads a task received and in which process."""

    def work(payloads: Iterable[Payload]) -> TaskOutput:
        # This function is pickled by value, and a sentinel pickled with it would be another object.
        from deltaworks.events.chunks import END_OF_CHUNK

        seen: list[tuple[int, str, str]] = []

        def seeing() -> Iterator[Payload]:
            for payload in payloads:
                if payload is not END_OF_CHUNK:
                    content = repr((payload.data, payload.problem, payload.events, payload.record))
                    seen.append((payload.seq, payload.key, hashlib.md5(content.encode()).hexdigest()))
                yield payload

        output = task(seeing())
        found = {
            "run": run,
            "batch": batch_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "executor": os.environ.get("SPARK_EXECUTOR_DIRS"),
            "payloads": seen,
        }
        part = Path(folder) / f".{uuid.uuid4().hex}"
        part.write_text(json.dumps(found))
        part.rename(Path(folder) / f"{time.time_ns()}-{uuid.uuid4().hex}.json")
        return output

    return work


class RecordedSlice:
    """A slice whose tasks record their payloads."""

    def __init__(self, inner: Slice, folder: str, run: str, batch_id: int) -> None:
        self._inner = inner
        self._notes = (folder, run, batch_id)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._inner.metadata

    def is_empty(self) -> bool:
        return self._inner.is_empty()

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        return self._inner.read(spark, noted(task, *self._notes), tasks=tasks)

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        return self._inner.read_isolated(spark, noted(task, *self._notes), tasks=tasks, isolation=isolation)


class RecordedSource:
    """A source whose slices record their payloads."""

    def __init__(self, inner: Source, folder: str, run: str) -> None:
        self._inner = inner
        self._folder, self._run = folder, run

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        return self._inner.frame(spark, start=start)

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return RecordedSlice(
            self._inner.slice_of(batch, batch_id=batch_id, offsets=offsets), self._folder, self._run, batch_id
        )

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        return self._inner.backlog(progress)


def fault_of(command: dict[str, Any], folder: Path) -> Callable[[str], None]:
    """Returns the action at the engine's points."""
    reached: dict[str, int] = {}

    def fault(point: str) -> None:
        reached[point] = reached.get(point, 0) + 1
        if command.get("kill") == [point, reached[point]]:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if command.get("fail") == [point, reached[point]]:
            raise RuntimeError("the process ends here")
        if command.get("hold") == [point, reached[point]]:
            (folder / "held").touch()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not (folder / "go").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody said go")
                time.sleep(0.05)

    return fault


def run(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Runs a pipeline once."""
    folder = Path(command["folder"])

    def opened(*declared: Any) -> Source:
        source = open_source(*declared)
        if command.get("broken"):
            source = broken_sources.BROKEN[command["broken"]](source, spark)
        return RecordedSource(source, str(folder), command["run"])

    parts = replace(STREAM_PARTS, open_source=opened)
    catalog = load_catalog("local")
    available_now = command.get("available_now", True)
    try:
        with call_at_points(fault_of(command, folder)):
            result = IngestRun(spark, catalog, command["pipeline"], parts=parts, available_now=available_now).run()
    except Exception as error:
        told = as_deltaworks_error(error)
        return {"error": told.condition, "retryable": told.retryable, "message": traceback.format_exc()[-3000:]}
    return {"batches": result.batches, "rows": result.rows, "ended_by": result.ended_by}


def two_executors(spark: SparkSession) -> None:
    """Waits until both executors are registered, because the first batch would otherwise use only one."""
    deadline = time.monotonic() + _PATIENCE_SECONDS

    def where(_: int) -> str:
        time.sleep(0.2)
        return os.environ["SPARK_EXECUTOR_DIRS"]

    while len(set(spark.sparkContext.parallelize(range(4), 4).map(where).collect())) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster has not got two executors")


def main() -> None:
    """Executes commands until the input ends."""
    # Executors do not have these modules, so their definitions are pickled with the tasks.
    cloudpickle.register_pickle_by_value(broken_sources)
    answers, sys.stdout = sys.stdout, sys.stderr
    environment = load_catalog("local", skip_invalid=True).environment
    spark = build_session(environment, app_name="contract", master="local-cluster[2,1,700]")
    two_executors(spark)
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
