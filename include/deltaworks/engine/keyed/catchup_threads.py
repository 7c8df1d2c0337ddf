"""Threads that merge new history rows into the keyed tables of a pipeline.

Keyed tables are merged after each batch. Live tables of kind `latest` are merged at their trigger interval in a
separate thread, so that large merges do not delay them. Batches never wait for a merge and do not fail with it. After a
failure the next check continues from the Delta logs, and the stream suspends the table.
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
#: Interval of checking histories for changes by other jobs while no batch runs. A check takes one listing.
CHECK_SECONDS = 30.0
RETRY_SECONDS = (0.5, 2.0)


class KeyedTables:
    """The keyed tables of one pipeline. Each table is merged by one thread; the write turns' thread calls `is_idle`.

    Merges of a table are at least `trigger_seconds` apart; with 0 it is merged after every batch.

    Args:
        spark: for merges that exceed this process's memory; None if not available.
    """

    def __init__(self, spark: SparkSession | None, lake: Lake, spec: PipelineSpec, *, owner: Step) -> None:
        tables = (*spec.keyed_tables, *spec.latest_tables)
        # One Lake per table: handles are not shared between threads.
        self._tables = {
            table.name: KeyedTableCatchUp(spark, Lake(lake.storage), spec, table, owner) for table in tables
        }
        self.trigger_seconds = {table.name: table.trigger_seconds for table in tables}
        self._merge_locks = {table.name: threading.Lock() for table in tables}
        self._failures_lock = threading.Lock()
        self._failures: dict[str, DeltaworksError] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keyed tables."""
        return tuple(self._tables)

    def is_idle(self, name: str) -> bool:
        """Returns whether no merge of this table is running. Merges of a held table start only after it is released."""
        if not self._merge_locks[name].acquire(blocking=False):
            return False
        self._merge_locks[name].release()
        return True

    def record_failure(self, name: str, error: DeltaworksError) -> None:
        """Records that a table could not catch up."""
        with self._failures_lock:
            self._failures[name] = error

    def pop_failures(self) -> dict[str, DeltaworksError]:
        """Returns the failures since the last call, by table, and clears them."""
        with self._failures_lock:
            failures, self._failures = self._failures, {}
        return failures

    def catch_up(self, name: str, *, is_held: Callable[[str], bool] = lambda table: False) -> CatchUpResult | None:
        """Merges all new history rows into a keyed table. Idempotent; returns None if there are none.

        Raises:
            FencedError: a successor has taken over.
            DeltaworksError: SPARK_UNAVAILABLE, COMMIT_CONTENDED, TABLE_SCHEMA_DIFFERS, or a storage error.
        """
        with self._merge_locks[name]:
            # Checked under the lock: a job that holds the table and then sees it idle may write to it.
            return None if is_held(name) else self._tables[name].catch_up()


class KeyedCatchUp:
    """Runs the threads that catch up a pipeline's keyed tables; starts none if there are no keyed tables.

    Args:
        is_held: whether a table is held; held tables are skipped.
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
        """Whether one of its threads is running."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Starts the threads; their first check covers history rows that an earlier run did not merge."""
        for thread in self._threads:
            thread.wake()
            thread.start()

    def notify(self) -> None:
        """Wakes the threads because a history may have changed."""
        for thread in self._threads:
            thread.wake()

    def close(self, *, wait_seconds: float | None) -> None:
        """Runs a last check and ends the threads.

        After `wait_seconds` a check that still runs is abandoned. That is harmless: the next run continues it.
        """
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(wait_seconds)

    def catch_up_all(self) -> list[CatchUpResult]:
        """Catches up all tables that are not held, in the calling thread; failures are recorded.

        Raises:
            FencedError: a successor has taken over.
        """
        results = (self._catch_up(name) for name in self._tables.names)
        return [result for result in results if result is not None]

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
    """A thread that checks some keyed tables when woken, and periodically.

    Args:
        triggers: minimum seconds between two merges by table; 0 for no minimum.
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
        """Starts a check because a history may have changed."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread after one more check."""
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
                # The stream itself stops at its next commit, which is fenced.
                log.warning("%s: a successor has taken over: %s", self.name, error)
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
