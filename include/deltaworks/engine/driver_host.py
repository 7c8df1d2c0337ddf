"""Who hosts a run: a driver of its own, which ends with it, or one that it shares with other pipelines.

What a run may do to its process differs. Alone, it ends the process where nothing more may be written. In company it
ends itself: what it has under way is held off by the owner epoch in the tables, as that of any former owner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.parent_watchdog import exit_immediately, launching_jvm
from deltaworks.errors import FencedError, TransientError
from deltaworks.specs.pipeline import PipelineSpec

log = logging.getLogger(__name__)
#: How long a run that was started though its stop flag is set takes to say so.
STOP_FLAG_DELAY_SECONDS = 20.0
#: How long the end of a run that is not alone waits for its batch. One that is stopped in the middle of its Python has
#: cost the thread of a query its stack.
BATCH_END_SECONDS = 60.0


class DriverHost(Protocol):
    """What a run needs of its driver. `limits_time`: the run ends after `max_run_seconds` of its own."""

    has_run_limit: bool
    stop_flag_delay_seconds: float

    def pool(self, name: str) -> str:
        """The scheduler's pool of a query."""

    def on_lease_lost(self) -> None:
        """Called from a thread once the lease is lost: nothing more may be started."""

    def stop_reason(self) -> str | None:
        """Why the run has to end now, if it has to.

        Raises:
            FencedError: LEASE_LOST.
        """

    def on_stall(self, error: TransientError) -> None:
        """A batch has hung; the heartbeat says so."""

    def await_batch(self, is_under_way: Callable[[], bool]) -> None:
        """Called before the queries of a run are stopped, when no further batch begins."""

    def on_queries_stopped(self, is_under_way: Callable[[], bool]) -> None:
        """Called once the queries of a run were stopped."""


class OwnDriver:
    """A driver that runs one stream. Its process ends with the run, by force where it must."""

    has_run_limit = True
    stop_flag_delay_seconds = STOP_FLAG_DELAY_SECONDS

    def pool(self, name: str) -> str:
        return name

    def on_lease_lost(self) -> None:
        # Nothing more may be started under a lost lease. The epoch in the tables refuses what is under way.
        exit_immediately(launching_jvm(), exit_code=FencedError.exit_code)

    def stop_reason(self) -> str | None:
        return None

    def on_stall(self, error: TransientError) -> None:
        exit_driver(error)

    def await_batch(self, is_under_way: Callable[[], bool]) -> None:
        return

    def on_queries_stopped(self, is_under_way: Callable[[], bool]) -> None:
        return


class SharedDriver:
    """A driver that runs the streams of a group; one object for each run of a pipeline. Safe between threads.

    Args:
        end_driver: ends the whole process. Called only where a batch that hangs cannot be ended alone.
    """

    has_run_limit = False
    stop_flag_delay_seconds = 0.0

    def __init__(self, pipeline: str, *, exit_driver: Callable[[TransientError], None]) -> None:
        self._pipeline = pipeline
        self._exit_driver = exit_driver
        self._reason: str | None = None
        self._lost = threading.Event()

    def request_end(self, reason: str) -> None:
        """Have the run end after the batch under way. Idempotent."""
        self._reason = self._reason or reason

    def pool(self, name: str) -> str:
        return f"{self._pipeline}.{name}"

    def on_lease_lost(self) -> None:
        self._lost.set()

    def stop_reason(self) -> str | None:
        if self._lost.is_set():
            raise FencedError("LEASE_LOST", f"The lease of {self._pipeline!r} went to a successor.")
        return self._reason

    def on_stall(self, error: TransientError) -> None:
        raise error

    def await_batch(self, is_under_way: Callable[[], bool]) -> None:
        if not self._lost.is_set():
            _wait_while(is_under_way, BATCH_END_SECONDS)

    def on_queries_stopped(self, is_under_way: Callable[[], bool]) -> None:
        # Spark cancels its jobs; Python that waits for something else, nobody can end but with the process.
        if _wait_while(is_under_way, BATCH_END_SECONDS):
            self._exit_driver(
                TransientError(
                    "BATCH_STALLED",
                    f"A batch of {self._pipeline!r} hangs and cannot be ended alone, so the driver of its group ends.",
                    hint="The next run resumes every pipeline of the group; see the driver log for where it hung.",
                )
            )


def exit_driver(error: TransientError) -> None:
    """End this process and its JVM at once, and tell the launcher why."""
    log.error("%s", error)
    print(error.as_line(), flush=True)  # noqa: T201 - the line a launcher reads
    exit_immediately(launching_jvm(), exit_code=error.exit_code)


def run_limit_reason(
    host: DriverHost, spec: PipelineSpec, now: float, *, started: float, first_batch: float | None
) -> str | None:
    """Why a run is over by its own time; None while it is not, or where its host counts.

    Counted from the first batch, so that a slow start never ends a run that has done nothing.
    """
    if not host.has_run_limit:
        return None
    limit_seconds = spec.stream.max_run_seconds
    if now - (first_batch or now) >= limit_seconds:
        return "max_run_seconds"
    return "max_run_seconds without a batch" if now - started >= 2 * limit_seconds else None


def fail_stalled_batch(
    pipeline: str,
    batch_started: float | None,
    now: float,
    *,
    stall_seconds: float,
    heartbeat: HeartbeatWriter,
    host: DriverHost,
) -> None:
    """Do nothing, or have the host end what hangs with BATCH_STALLED once a batch has run for `stall_seconds`.

    Args:
        batch_started: by the same monotonic clock as `now`; None while no batch runs.
    """
    if batch_started is None or now - batch_started < stall_seconds:
        return
    message = f"A batch of {pipeline!r} has run for {now - batch_started:.0f} seconds."
    error = TransientError("BATCH_STALLED", message, hint="The next run resumes it; see the driver log for where.")
    heartbeat.close(state="failed", error=error.as_record())
    host.on_stall(error)


def _wait_while(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until it holds no more; whether it still did after `seconds`."""
    deadline = time.monotonic() + seconds
    while condition():
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.1)
    return False
