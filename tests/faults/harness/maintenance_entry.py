"""Runs maintenance roles repeatedly in a separate process, with a JVM where they need one, until a stop file exists.

`python -m tests.faults.harness.maintenance_entry ROLES RECORDS STOP SEED OFF`: operations are recorded in files in
RECORDS. Once a file STOP exists, current operations are completed. OFF names disabled protections. Names are separated
by plus signs.

VACUUM keeps files for at least a day. To make minutes sufficient, the clock by which this process computes file ages is
advanced by a day less RETENTION_SECONDS; other clocks are not changed.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control.job import run_job
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.maintenance import vacuum
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.mutations import apply
from deltaworks.mutations.apply import MutationRun
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.spark_session import build_session
from tests.faults.harness.bad_deletes import BadDeletes
from tests.faults.harness.fault_project import PIPELINE
from tests.faults.harness.operations import Counts, Operations
from tests.faults.harness.slow_reader import TABLE as READ
from tests.faults.harness.slow_reader import SlowReader
from tests.faults.harness.vacuum_clock import advance_vacuum_clock

KEPT_HOURS = 24
#: VACUUM's retention of removed files in real time.
RETENTION_SECONDS = 60.0
REST_SECONDS = {
    "optimize": 6.0,
    "vacuum": 8.0,
    "mutate": 8.0,
    "second_mutate": 4.0,
    "last_mutate": 0.0,
    "restore": 12.0,
    "read": 1.0,
}
#: Every n-th VACUUM lists folders; the others use the log where possible.
LISTED_EVERY = 5
#: Tables of each VACUUM, in rotation.
VACUUMED: list[tuple[str, ...]] = [
    ("events", "k01", READ),
    ("k02", "activities"),
    ("k03", READ, "requests"),
    ("notifications", "names"),
]


def switch_off(names: str) -> None:
    """Disables protections.

    Raises:
        KeyError: no protection has this name.
    """
    for name in filter(None, names.split("+")):
        {"turn": _turn, "holds": _holds}[name]()


def _turn() -> None:
    """Merges do not wait for the table's write turn."""
    apply.write_turn = lambda *_, **__: uncontested_turn("")  # type: ignore[assignment]


def _holds() -> None:
    """VACUUM ignores pinned versions, and always includes the reader's table."""
    vacuum.holds_on = lambda *_: []
    VACUUMED[:] = [(READ,)]


def optimizing(spark: Any, catalog: Catalog) -> Callable[[], Counts]:
    """Runs a nightly OPTIMIZE by table health."""

    def once() -> Counts:
        done = optimize_tables(lambda: spark, catalog, PIPELINE, minutes=5)
        names = ("partitions", "without_spark", "zordered", "files_before", "files_after")
        return {name: sum(getattr(result, name) for result in done) for name in names}

    return once


def vacuuming(spark: Any, catalog: Catalog) -> Callable[[], Counts]:
    """Runs VACUUM on a few tables with an overridden short retention, so that OPTIMIZE can run in between."""
    advance_vacuum_clock(kept_hours=KEPT_HOURS, retention_seconds=RETENTION_SECONDS)
    numbers = itertools.count(1)
    tables = itertools.cycle(VACUUMED)

    def once() -> Counts:
        done = vacuum.vacuum_tables(
            lambda: spark,
            catalog,
            PIPELINE,
            dry_run=False,
            retention_hours=KEPT_HOURS,
            below_minimum="a soak",
            tables=next(tables),
            mode="full" if next(numbers) % LISTED_EVERY == 0 else None,
        )
        for result in done:
            print(f"VACUUM {result}", flush=True)
        held = [result for result in done if "needs the table as of" in result.reason and not result.skipped]
        return {
            "files": sum(result.files for result in done),
            "listed": sum(result.mode == "full" for result in done),
            "held_back": len(held),
            "left_out": sum(result.reason.startswith("skipped") for result in done),
        }

    return once


def mutating(spark: Any, catalog: Catalog, *, wait_seconds: float) -> Callable[[], Counts]:
    """Applies all received requests."""

    def once() -> Counts:
        done = MutationRun(lambda: spark, catalog, PIPELINE, lease_wait_seconds=wait_seconds).run()
        ends = [*done.completed, *done.batches]
        return {
            "batches": len(ends),
            "rows": sum(end.rows for end in ends),
            "merges": sum(table.attempts > 0 for end in ends for table in end.tables),
            "attempts": sum(table.attempts for end in ends for table in end.tables),
        }

    return once


#: Functions of the roles that need Spark.
SPARK_WORK: dict[str, Callable[[Any, Catalog], Callable[[], Counts]]] = {
    "optimize": optimizing,
    "vacuum": vacuuming,
    "mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=60.0),
    # A second concurrent MERGE, which must be refused.
    "second_mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=2.0),
    # Requests received by the end are applied after all other roles have stopped.
    "last_mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=60.0),
}


class Roles:
    """The roles of this process, each with a thread and, where needed, a Spark session."""

    def __init__(self, catalog: Catalog, records: Path, stop: Path, seed: str) -> None:
        self._catalog = catalog
        self._records = records
        self._stop = stop
        self._seed = seed
        self._spark: SparkSession | None = None

    def run(self, roles: list[str]) -> None:
        """Runs all roles until the stop file exists."""
        if set(roles) & set(SPARK_WORK):
            self._spark = build_session(self._catalog.environment, app_name=f"soak.{roles[0]}", master="local[2]")
        with ThreadPoolExecutor(len(roles)) as pool:
            for ended in [pool.submit(self._repeat, role) for role in roles]:
                ended.result()
        if self._spark is not None:
            self._spark.stop()

    def _repeat(self, role: str) -> None:
        chance = random.Random(f"{self._seed}{role}")
        once = self._operation(role, Operations(self._records / f"operations-{role}.jsonl", chance), chance)
        once()
        while not self._stop.exists():
            time.sleep(chance.uniform(0.5, 1.5) * REST_SECONDS[role])
            once()

    def _operation(self, role: str, operations: Operations, chance: random.Random) -> Callable[[], object]:
        if role == "restore":
            return BadDeletes(self._catalog, operations, chance).delete_and_restore
        if role == "read":
            reader = SlowReader(self._catalog, stop=self._stop, pinned_seconds=2.5 * RETENTION_SECONDS)
            return lambda: operations.perform(role, reader.read_pinned)
        assert self._spark is not None
        attempt = SPARK_WORK[role](self._spark.newSession(), self._catalog)
        return lambda: operations.perform(role, attempt)


def main() -> int:
    roles, records, stop, seed, off = sys.argv[1:6]
    switch_off(off)
    Roles(load_catalog(), Path(records), Path(stop), seed).run(roles.split("+"))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
