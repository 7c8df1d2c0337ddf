"""Keyed tables of a pipeline, and the threads that catch them up with their histories.

Keyed tables follow each batch; live tables of kind `latest` follow at their trigger interval in a thread of their own,
so that large merges do not delay them. Batches never wait for a merge and do not fail with it: the next check continues
from the logs. Failures are reported to the stream, which suspends the table.
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
#: Interval of checking histories for changes by other jobs while no batch runs; each takes one listing.
CHECK_SECONDS = 30.0
RETRY_SECONDS = (0.5, 2.0)


class KeyedTables:
    """The keyed tables of one pipeline. `catch_up` is called by one thread per table, `is_idle` by the write turns'
    thread.

    `trigger_seconds` is the minimum interval between merges per table; 0 follows every batch.

    Args:
        spark: merges what exceeds this process's memory; None if not available.
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
        """Returns whether no merge of a table is running. A held table is not merged until it is released."""
        if not self._merge_locks[name].acquire(blocking=False):
            return False
        self._merge_locks[name].release()
        return True

    def record_failure(self, name: str, error: DeltaworksError) -> None:
        """Records that a table could not catch up."""
        with self._failures_lock:
            self._failures[name] = error

    def pop_failures(self) -> dict[str, DeltaworksError]:
        """Returns the failures since the last call, by table."""
        with self._failures_lock:
            failures, self._failures = self._failures, {}
        return failures

    def catch_up(self, name: str, *, is_held: Callable[[str], bool] = lambda table: False) -> CatchUpResult | None:
        """Merges a keyed table up to the newest version of its history. Idempotent; None if there is nothing to do.

        Raises:
            FencedError: a successor has taken over.
            DeltaworksError: SPARK_UNAVAILABLE, COMMIT_CONTENDED, TABLE_SCHEMA_DIFFERS, or a storage error.
        """
        with self._merge_locks[name]:
            # Checked while holding the lock: a holder that then finds the table idle may write it.
            return None if is_held(name) else self._tables[name].catch_up()


class KeyedCatchUp:
    """Catches a pipeline's keyed tables up in threads; starts none without keyed tables.

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
        """Starts the threads, beginning with pending work."""
        for thread in self._threads:
            thread.wake()
            thread.start()

    def notify(self) -> None:
        """Signals that a history may have changed."""
        for thread in self._threads:
            thread.wake()

    def close(self, *, wait_seconds: float | None) -> None:
        """Runs a last check and ends. A check longer than `wait_seconds` ends with the process, without harm."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(wait_seconds)

    def catch_up_all(self) -> list[CatchUpResult]:
        """Catches up all tables that are not held, in this thread; failures are recorded.

        Raises:
            FencedError: a successor has taken over.
        """
        results = (self._catch_up(name) for name in self._tables.names)
        return [followed for followed in results if followed is not None]

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
    """Checks some tables when woken, and periodically.

    A table with a trigger is merged at most once per interval.

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
        """Signals that a history may have changed."""
        self._wake.set()

    def close(self) -> None:
        """Ends after one more check."""
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
                # The stream detects the successor with its next commit.
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
