"""The keyed tables of a pipeline, and the threads beside its batches that bring them up to date.

Keyed tables that are declared beside their history follow each batch; live tables of newest rows, in a thread of their
own that no larger merge delays, follow at their triggers. A batch never waits for a merge, and a merge that fails fails
no batch: what is missing follows from the logs, and is made up for by the next look. A failure is noted for the stream,
which suspends the table.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deltaworks.control.job import as_deltaworks_error
from deltaworks.engine.keyed.keyed_catchup import CatchUpResult, KeyedTableCatchUp
from deltaworks.errors import DeltaworksError, FencedError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: How often histories are looked at that other jobs may have changed while no batch comes: one listing each.
CHECK_SECONDS = 30.0
RETRY_SECONDS = (0.5, 2.0)


class KeyedTables:
    """The keyed tables of one pipeline. `follow` is for one thread a table; `idle` for another, that of write turns.

    `trigger_seconds` has for each table how long a merge waits after the one before; 0 for one that follows batches.

    Args:
        spark: merges what is too large for this process's memory; None where it does not run.
    """

    def __init__(self, spark: SparkSession | None, lake: Lake, spec: PipelineSpec, *, owner: Step) -> None:
        tables = (*spec.keyed_tables, *spec.latest_tables)
        # A lake each: handles are not shared between threads.
        self._tables = {
            table.name: KeyedTableCatchUp(spark, Lake(lake.storage), spec, table, owner) for table in tables
        }
        self.trigger_seconds = {table.name: table.trigger_seconds for table in tables}
        self._merge_locks = {table.name: threading.Lock() for table in tables}
        self._failures_lock = threading.Lock()
        self._failures: dict[str, DeltaworksError] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The keyed tables."""
        return tuple(self._tables)

    def is_idle(self, name: str) -> bool:
        """Whether a table is not merged at this moment. One that is held by then is not merged before it is free."""
        if not self._merge_locks[name].acquire(blocking=False):
            return False
        self._merge_locks[name].release()
        return True

    def record_failure(self, name: str, error: DeltaworksError) -> None:
        """Say that a table cannot be brought up to date."""
        with self._failures_lock:
            self._failures[name] = error

    def pop_failures(self) -> dict[str, DeltaworksError]:
        """What was noted since the last call, by table."""
        with self._failures_lock:
            failures, self._failures = self._failures, {}
        return failures

    def catch_up(self, name: str, *, is_held: Callable[[str], bool] = lambda table: False) -> CatchUpResult | None:
        """Bring a keyed table to the newest version of its history. Idempotent; None where there was nothing to do.

        Raises:
            FencedError: a successor has taken over.
            DeltaworksError: SPARK_UNAVAILABLE, COMMIT_CONTENDED, TABLE_SCHEMA_DIFFERS and what reading and writing raises.
        """
        with self._merge_locks[name]:
            # Looked at with the lock in hand: who holds a table and then finds nothing at work may write it.
            return None if is_held(name) else self._tables[name].catch_up()


class KeyedCatchUp:
    """Follows the histories of a pipeline's keyed tables; nothing runs where it has none.

    Args:
        is_held: whether a table is held. Such a one is left alone.
    """

    def __init__(self, tables: KeyedTables, *, is_held: Callable[[str], bool]) -> None:
        self._tables = tables
        self._is_held = is_held
        triggers = tables.trigger_seconds
        after_batches = {name: 0.0 for name in tables.names if not triggers[name]}
        at_triggers = {name: triggers[name] for name in tables.names if triggers[name]}
        self._threads = [
            _CatchUpThread(title, names, self._catch_up)
            for title, names in (("keyed tables", after_batches), ("live tables", at_triggers))
            if names
        ]

    @property
    def is_running(self) -> bool:
        """Whether a thread of it is."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Begin, with what was left undone before."""
        for thread in self._threads:
            thread.wake()
            thread.start()

    def notify(self) -> None:
        """Say that a history may have changed."""
        for thread in self._threads:
            thread.wake()

    def close(self, *, wait_seconds: float | None) -> None:
        """Look once more and end. What takes longer than `wait_seconds` ends with the process, and does no harm."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(wait_seconds)

    def catch_up_all(self) -> list[CatchUpResult]:
        """Bring every table that is not held up to date, in this thread; what fails is noted there.

        Raises:
            FencedError: a successor has taken over.
        """
        done = (self._catch_up(name) for name in self._tables.names)
        return [followed for followed in done if followed is not None]

    def _catch_up(self, name: str) -> CatchUpResult | None:
        for wait_seconds in (*RETRY_SECONDS, None):
            try:
                return self._tables.catch_up(name, is_held=self._is_held)
            except FencedError:
                raise
            except Exception as error:
                mapped = as_deltaworks_error(error)
                log.warning("table=%s could not be brought up to date: %s", name, mapped)
                if wait_seconds is None or not mapped.retryable:
                    self._tables.record_failure(name, mapped)
                    return None
                time.sleep(wait_seconds)
        return None


class _CatchUpThread(threading.Thread):
    """Looks at some tables whenever it is woken, and else from time to time.

    A table with a trigger is merged no sooner than so many seconds after its last merge.

    Args:
        triggers: seconds by table, 0 for none.
    """

    def __init__(
        self, title: str, triggers: Mapping[str, float], catch_up: Callable[[str], CatchUpResult | None]
    ) -> None:
        super().__init__(name=title, daemon=True)
        self._triggers = triggers
        self._catch_up = catch_up
        self._wake = threading.Event()
        self._closing = False
        self._checked_at = dict.fromkeys(triggers, -math.inf)
        self._merged_at = dict.fromkeys(triggers, -math.inf)

    def wake(self) -> None:
        """Say that a history may have changed."""
        self._wake.set()

    def close(self) -> None:
        """End after one more look."""
        self._closing = True
        self._wake.set()

    def run(self) -> None:
        while True:
            is_woken = self._wake.wait(self._seconds_to_next())
            self._wake.clear()
            closing = self._closing
            try:
                for name in self._triggers:
                    if closing or self._is_due(name, is_woken=is_woken):
                        self._check(name)
            except FencedError as error:
                # The stream itself meets the successor with its next commit.
                log.warning("%s are left to a successor: %s", self.name, error)
                return
            if closing:
                return

    def _check(self, name: str) -> None:
        result = self._catch_up(name)
        self._checked_at[name] = time.monotonic()
        if result is not None and result.rows:
            self._merged_at[name] = self._checked_at[name]

    def _is_due(self, name: str, *, is_woken: bool) -> bool:
        now = time.monotonic()
        if is_woken and now >= self._merged_at[name] + self._triggers[name]:
            return True
        return now >= self._next_check(name)

    def _next_check(self, name: str) -> float:
        return self._checked_at[name] + (self._triggers[name] or CHECK_SECONDS)

    def _seconds_to_next(self) -> float:
        return max(0.0, min(map(self._next_check, self._triggers)) - time.monotonic())
