"""A member of a group: one pipeline with its Spark session, and its runs, one at a time in a thread.

A member uses the same records as a stream with its own driver: lease, owner epoch, heartbeat, checkpoint, progress,
stop flag and failure record. So a pipeline can move between a group and its own driver without loss.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.backoff import OUTAGE_CONDITIONS, RestartBackoff
from deltaworks.control.health.heartbeat import HeartbeatWriter, read_heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.engine.driver_host import SharedDriver
from deltaworks.engine.group.supervision import Outcome, RunEnd, Signals
from deltaworks.engine.runner import IngestRun, StreamParts
from deltaworks.errors import ContractError, DeltaworksError, FencedError, TransientError
from deltaworks.specs.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: Conditions of a run that ended because another process owns the pipeline.
_OTHER_OWNER_CONDITIONS = frozenset({"LEASE_HELD"})
#: Wait before another attempt to start a pipeline that another process owns.
_OTHER_OWNER_WAIT_SECONDS = 5.0


class Member:
    """One pipeline of a group. The group's thread calls the methods; each run has its own thread."""

    def __init__(
        self,
        pipeline: str,
        objects: ObjectStore,
        *,
        parts: StreamParts,
        new_session: Callable[[], SparkSession],
        is_driver_alive: Callable[[], bool],
        exit_driver: Callable[[TransientError], None],
        available_now: bool = False,
    ) -> None:
        """Creates the member without starting a run.

        Args:
            parts: see `IngestRun`.
            new_session: creates a session of the shared Spark application; called once.
            is_driver_alive: whether the JVM is alive. If it is not, failures are not counted against the member.
            available_now: runs end once the available data is processed.
        """
        self.pipeline = pipeline
        self._objects = objects
        self._parts = parts
        self._new_session = new_session
        self._spark: SparkSession | None = None
        self._is_driver_alive = is_driver_alive
        self._exit_driver = exit_driver
        self._available_now = available_now
        control = paths.pipeline_control(pipeline)
        self._stop = StopFlag(objects, paths.stop_request(control))
        self._heartbeat_key = paths.heartbeat(control)
        self.backoff = RestartBackoff(objects, paths.failures(control))
        self._host: SharedDriver | None = None
        self._run: IngestRun | None = None
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._trigger_seconds = 60.0
        self._not_before = 0.0
        self.batches = 0
        self.rows = 0
        self.last_error: DeltaworksError | None = None

    def signals(self, *, is_member: bool, is_closing: bool) -> Signals:
        """Reads the member's stop flag and failure record. If the storage is unreachable, the member waits.

        The storage is not read if the member has to end anyway.
        """
        if is_closing or not is_member:
            return Signals(is_member=is_member, is_closing=is_closing)
        try:
            record, stop = self.backoff.read(), self._stop.read()
            backoff_seconds = self.backoff.remaining_seconds()
        except Exception as error:
            log.warning("pipeline=%s waits for its records: %s", self.pipeline, error)
            return Signals(is_member=is_member, wait_seconds=1.0)
        wait_seconds = max(backoff_seconds, self._not_before - time.monotonic())
        return Signals(
            stop_requested=stop is not None, is_parked=bool(record.parked_condition), wait_seconds=wait_seconds
        )

    @property
    def has_completed_batch(self) -> bool:
        """Whether any of its runs has completed a batch."""
        return self.batches > 0 or (self._run is not None and self._run.batches > 0)

    def start(self, catalog: Catalog, *, trigger_seconds: float) -> None:
        """Starts a run with the given catalog."""
        from pyspark import InheritableThread

        self._outcome, self._run = None, None
        self._host = SharedDriver(self.pipeline, exit_driver=self._exit_driver)
        self.backoff.start_run()
        self._trigger_seconds = trigger_seconds
        self._thread = InheritableThread(target=self._run_stream, args=(catalog, self._host))
        self._thread.name, self._thread.daemon = f"stream-{self.pipeline}", True
        self._thread.start()

    def request_end(self, reason: str) -> None:
        """Ends the run after its current batch."""
        if self._host is not None:
            self._host.request_end(reason)

    def poll_outcome(self) -> Outcome | None:
        """Returns the outcome of a run once, after the run has ended; None before and afterwards."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._outcome or Outcome(end=RunEnd.FAILED)

    def park(self) -> None:
        """Parks the member after repeated failures, in its failure record and its heartbeat. Only an operator can
        restart it.
        """
        error = self.last_error
        condition = error.condition if error is not None else "STREAM_FAILED"
        self.backoff.park(condition)
        parked = ContractError(
            "STREAM_PARKED",
            f"{self.pipeline!r} failed {self.backoff.read().non_outage_failures} times in a row soon after its start, "
            f"and is excluded from its group. Last failure: {error}",
            hint=(
                f"Fix the cause, then run `deltaworks start {self.pipeline}`. The other pipelines of the group "
                "continue."
            ),
        )
        log.error("pipeline=%s is parked: %s", self.pipeline, parked)
        last = read_heartbeat(self._objects, self._heartbeat_key)
        writer = HeartbeatWriter(
            self._objects, self._heartbeat_key, pipeline=self.pipeline, trigger_seconds=self._trigger_seconds
        )
        if last is not None:
            # Keeps the backlog and the source's retention, which health checks use.
            writer.update(**dict(last))
        writer.start()
        writer.close(state="failed", error=parked.as_record())

    def _run_stream(self, catalog: Catalog, host: SharedDriver) -> None:
        try:
            if self._spark is None:
                self._spark = self._new_session()
            run = self._run = IngestRun(
                self._spark,
                catalog,
                self.pipeline,
                parts=self._parts,
                available_now=self._available_now,
                host=host,
            )
            result = run.run()
        except BaseException as error:
            self._outcome = self._record_failure(error)
            return
        finally:
            if self._run is not None:
                self.batches += self._run.batches
                self._run = None
        self.rows += result.rows
        log.warning("pipeline=%s ended by %s after %d batches", self.pipeline, result.ended_by, result.batches)
        self._reset_failures()
        self._outcome = Outcome(end=RunEnd.FINISHED if result.ended_by == "available now" else RunEnd.NORMAL)

    def _record_failure(self, error: BaseException) -> Outcome:
        mapped = self.last_error = as_deltaworks_error(error)
        log.error("pipeline=%s failed: %s", self.pipeline, mapped, exc_info=mapped.condition == "JOB_FAILED")
        if (
            mapped.condition in _OTHER_OWNER_CONDITIONS
            or isinstance(mapped, FencedError)
            or not self._is_driver_alive()
        ):
            self._not_before = time.monotonic() + _OTHER_OWNER_WAIT_SECONDS
            return Outcome(end=RunEnd.OTHER_OWNER)
        try:
            self.backoff.record_failure(retryable=mapped.retryable, is_outage=mapped.condition in OUTAGE_CONDITIONS)
            return Outcome(end=RunEnd.FAILED, non_outage_failures=self.backoff.read().non_outage_failures)
        except Exception as problem:
            log.warning("pipeline=%s: its failure could not be recorded: %s", self.pipeline, problem)
            return Outcome(end=RunEnd.FAILED)

    def _reset_failures(self) -> None:
        try:
            self.backoff.reset()
        except Exception as problem:
            log.warning("pipeline=%s: its failures could not be reset: %s", self.pipeline, problem)
