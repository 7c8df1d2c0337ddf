"""The keyed tables of a pipeline, and the thread beside its batches that brings them up to date after each one.

A batch never waits for a merge, and a merge that fails fails no batch: what is missing follows from the logs, and is
made up for by the next look. A failure is noted for the stream, which suspends the table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deltaworks.control.job import as_deltaworks_error
from deltaworks.engine.keyed.following import Followed, KeyedTableFollower
from deltaworks.errors import DeltaworksError, FencedError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: How often histories are looked at that other jobs may have changed while no batch comes: one listing each.
LOOK_SECONDS = 30.0
RETRY_SECONDS = (0.5, 2.0)


class KeyedTables:
    """The keyed tables of one pipeline. `follow` is for one thread; `idle` is for another, that of the write turns.

    Args:
        spark: merges what is too large for this process's memory; None where it does not run.
    """

    def __init__(self, spark: SparkSession | None, lake: Lake, spec: PipelineSpec, *, owner: Step) -> None:
        # A lake of its own: handles are not shared between threads.
        own_lake = Lake(lake.storage)
        self._tables = {
            table.name: KeyedTableFollower(spark, own_lake, spec, table, owner) for table in spec.keyed_tables
        }
        self._working = threading.Lock()
        self._failures: dict[str, DeltaworksError] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The keyed tables."""
        return tuple(self._tables)

    def idle(self) -> bool:
        """Whether nothing is merged at this moment. What is held by then is not merged before it is free."""
        if not self._working.acquire(blocking=False):
            return False
        self._working.release()
        return True

    def note_failure(self, name: str, error: DeltaworksError) -> None:
        """Say that a table cannot be brought up to date."""
        self._failures = {**self._failures, name: error}

    def failures(self) -> dict[str, DeltaworksError]:
        """What was noted since the last call, by table."""
        failures, self._failures = self._failures, {}
        return failures

    def follow(self, name: str, *, is_held: Callable[[str], bool] = lambda table: False) -> Followed | None:
        """Bring a keyed table to the newest version of its history. Idempotent; None where there was nothing to do.

        Raises:
            FencedError: a successor has taken over.
            DeltaworksError: SPARK_ABSENT, COMMIT_CONTENDED, TABLE_SCHEMA_DIFFERS and what reading and writing raises.
        """
        with self._working:
            # Looked at with the lock in hand: who holds a table and then finds nothing at work may write it.
            return None if is_held(name) else self._tables[name].follow()


class KeyedFollower:
    """Follows the histories of a pipeline's keyed tables; nothing runs where it has none.

    Args:
        is_held: whether a table is held. Such a one is left alone.
    """

    def __init__(self, tables: KeyedTables, *, is_held: Callable[[str], bool]) -> None:
        self._tables = tables
        self._is_held = is_held
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="keyed tables", daemon=True)

    def start(self) -> None:
        """Begin, with what was left undone before."""
        if self._tables.names:
            self._wake.set()
            self._thread.start()

    def signal(self) -> None:
        """Say that a history may have changed."""
        self._wake.set()

    def close(self, *, wait_seconds: float | None) -> None:
        """Look once more and end. What takes longer than `wait_seconds` ends with the process, and does no harm."""
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(wait_seconds)

    def look(self) -> list[Followed]:
        """Bring every table that is not held up to date, in this thread; what fails is noted there.

        Raises:
            FencedError: a successor has taken over.
        """
        done = (self._follow(name) for name in self._tables.names)
        return [followed for followed in done if followed is not None]

    def _follow(self, name: str) -> Followed | None:
        for wait_seconds in (*RETRY_SECONDS, None):
            try:
                return self._tables.follow(name, is_held=self._is_held)
            except FencedError:
                raise
            except Exception as error:
                own = as_deltaworks_error(error)
                log.warning("table=%s could not be brought up to date: %s", name, own)
                if wait_seconds is None or not own.retryable:
                    self._tables.note_failure(name, own)
                    return None
                time.sleep(wait_seconds)
        return None

    def _loop(self) -> None:
        while True:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            closing = self._closing
            try:
                self.look()
            except FencedError as error:
                # The stream itself meets the successor with its next commit.
                log.warning("keyed tables are left to a successor: %s", error)
                return
            if closing:
                return
