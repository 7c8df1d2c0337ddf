"""Applies mutation requests in a separate process with its own JVM that dies at a given point or lacks protections."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.job import run_job
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.control.records.mutation import MutationBatch, MutationBatches
from deltaworks.mutations import apply, commits, small_merge
from deltaworks.mutations.apply import MutationRun
from deltaworks.specs.project import load_catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.spark_session import build_session
from deltaworks.testing import present

#: The batch dies after its merge wrote files and before the commit that names them.
IN_MERGE = "in_merge"


def shorten_lease() -> None:
    """Declares a process dead after three seconds instead of thirty."""
    apply.LEASE_SECONDS = 3
    apply.write_turn = functools.partial(apply.write_turn, ttl_seconds=3.0)


def switch_off(names: str) -> None:
    """Disables protections, given with plus signs between their names.

    Raises:
        KeyError: no protection has this name.
    """
    for name in filter(None, names.split("+")):
        {"turn": _turn, "transactions": _transactions, "bounds": _bounds}[name]()


def _turn() -> None:
    """Merges do not wait for the table's write turn."""
    apply.write_turn = lambda *_, **__: uncontested_turn("")  # type: ignore[assignment]


def _transactions() -> None:
    """A step is committed without its transaction and without a look-up whether it has already landed."""
    commits.transaction_settings = lambda *_: {}
    commits.StepCommits.has_committed = lambda *_: False  # type: ignore[method-assign]
    commits.StepCommits.append_once = _append_without_step  # type: ignore[method-assign]


def _append_without_step(self: commits.StepCommits, table: str, rows: pa.Table) -> None:
    key = paths.table(self._pipeline, table)
    self._lake.append(
        present(self._lake.open(key)),
        key,
        rows,
        step=Step(uuid.uuid4().hex, 1),
        user_metadata=self._metadata(self.step(table)),
    )


def _bounds() -> None:
    """An interrupted batch is not continued: every attempt covers all requests present at that time."""

    def put(batches: MutationBatches, batch: MutationBatch) -> MutationBatch:
        batches._objects.put(paths.mutation_batch(batch.pipeline, batch.number), batch.encode())
        return batch

    MutationBatches.get_or_create = put  # type: ignore[method-assign]
    MutationRun._unfinished_batch = lambda _: None  # type: ignore[method-assign]


def _die_in_merge(table: Path) -> None:
    """Kills the process when the next commit of the table has written files and is not put yet."""
    known, log = set(table.rglob("*.parquet")), table / "_delta_log"
    commits_before = len(list(log.glob("*.json")))
    while len(list(log.glob("*.json"))) == commits_before:
        if set(table.rglob("*.parquet")) - known:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(0.002)


def main() -> int:
    pipeline, point, off = sys.argv[1:4]
    shorten_lease()
    switch_off(off)
    if point == IN_MERGE:
        # Spark then does the merge, and there is time to die between its files and its commit.
        small_merge.free_memory_bytes = lambda *_: 0
    catalog = load_catalog()

    def hit(reached: str) -> None:
        print(f"POINT {reached}", flush=True)
        if reached == point:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if point == IN_MERGE and reached == "resolved":
            table = Path(catalog.environment.lake.prefix) / paths.table(pipeline, "activities")
            threading.Thread(target=_die_in_merge, args=(table,), daemon=True).start()

    sessions: list[SparkSession] = []

    def spark() -> SparkSession:
        if not sessions:
            sessions.append(build_session(catalog.environment, app_name="faults.mutations", master="local[2]"))
        return sessions[0]

    done = MutationRun(spark, catalog, pipeline, fault=hit).run()
    ends: list[Any] = [*done.completed, *done.batches]
    for end in ends:
        attempts = sum(table.attempts for table in end.tables)
        print(f"BATCH {end.number} rows {end.rows} pause {end.pause_seconds:.1f} attempts {attempts}", flush=True)
    for session in sessions:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
