"""Kinds of upkeep in a process of their own, with a JVM where they need one, over and over until they are told to stop.

`python -m tests.faults.harness.maintenance_entry ROLES RECORDS STOP SEED OFF`: operations go to files in RECORDS, and those
in hand are completed once there is a file STOP. OFF names protections that are taken away. Names have plus signs
between them.

VACUUM keeps a day at least, whatever it is asked for. So that minutes are enough, its process lives in another day: the
clock that it judges ages by is ahead by a day less RETENTION_SECONDS, and nobody else's is.
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
from deltaworks.tables.spark.session import build_session
from tests.faults.harness.bad_deletes import BadDeletes
from tests.faults.harness.fault_project import PIPELINE
from tests.faults.harness.operations import Counts, Operations
from tests.faults.harness.slow_reader import TABLE as READ
from tests.faults.harness.slow_reader import SlowReader
from tests.faults.harness.vacuum_clock import advance_vacuum_clock

KEPT_HOURS = 24
#: How long removed files are kept by VACUUM, by everybody else's clock.
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
#: Every so many VACUUMs list folders; the others go by the log where that will do.
LISTED_EVERY = 5
#: Which tables each VACUUM is for, in turn.
VACUUMED: list[tuple[str, ...]] = [
    ("events", "k01", READ),
    ("k02", "activities"),
    ("k03", READ, "requests"),
    ("notifications", "names"),
]


def switch_off(names: str) -> None:
    """Take protections away.

    Raises:
        KeyError: there is none of that name.
    """
    for name in filter(None, names.split("+")):
        {"turn": _turn, "holds": _holds}[name]()


def _turn() -> None:
    """Whoever merges does so at once."""
    apply.write_turn = lambda *_, **__: uncontested_turn("")  # type: ignore[assignment]


def _holds() -> None:
    """VACUUM asks nobody what is still needed, and comes to the reader's table each time."""
    vacuum.holds_on = lambda *_: []
    VACUUMED[:] = [(READ,)]


def optimizing(spark: Any, catalog: Catalog) -> Callable[[], Counts]:
    """A night's OPTIMIZE by health."""

    def once() -> Counts:
        done = optimize_tables(lambda: spark, catalog, PIPELINE, minutes=5)
        names = ("partitions", "without_spark", "zordered", "files_before", "files_after")
        return {name: sum(getattr(result, name) for result in done) for name in names}

    return once


def vacuuming(spark: Any, catalog: Catalog) -> Callable[[], Counts]:
    """VACUUM with a short retention, by explicit override: a few tables at a time, so that OPTIMIZE has its turns."""
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
        held = [result for result in done if "needs what the table was" in result.reason and not result.skipped]
        return {
            "files": sum(result.files for result in done),
            "listed": sum(result.mode == "full" for result in done),
            "held_back": len(held),
            "left_out": sum(result.reason.startswith("skipped") for result in done),
        }

    return once


def mutating(spark: Any, catalog: Catalog, *, wait_seconds: float) -> Callable[[], Counts]:
    """All requests that have come."""

    def once() -> Counts:
        done = MutationRun(spark, catalog, PIPELINE, lease_wait_seconds=wait_seconds).run()
        ends = [*done.completed, *done.batches]
        return {
            "batches": len(ends),
            "rows": sum(end.rows for end in ends),
            "merges": sum(table.attempts > 0 for end in ends for table in end.tables),
            "attempts": sum(table.attempts for end in ends for table in end.tables),
        }

    return once


#: What each role that needs Spark does.
SPARK_WORK: dict[str, Callable[[Any, Catalog], Callable[[], Counts]]] = {
    "optimize": optimizing,
    "vacuum": vacuuming,
    "mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=60.0),
    # A second MERGE at once, which has to be refused.
    "second_mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=2.0),
    # What has come by the end, after everybody else.
    "last_mutate": lambda spark, catalog: mutating(spark, catalog, wait_seconds=60.0),
}


class Roles:
    """The roles of this process, each with a thread and, where it needs one, a Spark session of its own."""

    def __init__(self, catalog: Catalog, records: Path, stop: Path, seed: str) -> None:
        self._catalog = catalog
        self._records = records
        self._stop = stop
        self._seed = seed
        self._spark: SparkSession | None = None

    def run(self, roles: list[str]) -> None:
        """All of them until they are told to stop."""
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
