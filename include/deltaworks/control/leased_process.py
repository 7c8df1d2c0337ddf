"""Runs a process under its lease with a heartbeat until it is stopped, fenced or past its run limit."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import HeartbeatWriter, StopFlag, StreamState
from deltaworks.control.locks.lease import Lease, watch_lease
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import DeltaworksError, FencedError

log = logging.getLogger(__name__)
_STOP_POLL_SECONDS = 2.0


class LeasedProcess:
    """One run of a process under its lease.

    Any thread may call `stop`. The code that does the work must check `should_stop` regularly, and call `pause` to
    wait.

    Args:
        folder: control folder. name: display name.
        ttl_seconds: time to live of the lease. max_run_seconds: run limit, after which the launcher starts a new run.
        trigger_seconds: expected interval of heartbeats, from which health derives how old one may be.
        known_epoch: highest owner epoch recorded elsewhere, used if the lease object has vanished.
        stall_seconds: without `record_progress` for this long the heartbeat stops, so health reports a stall.
    """

    def __init__(
        self,
        objects: ObjectStore,
        folder: str,
        *,
        name: str,
        ttl_seconds: float,
        max_run_seconds: float,
        trigger_seconds: float = 5.0,
        stall_seconds: float = float("inf"),
        known_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._objects, self._folder, self._name = objects, folder, name
        self._ttl_seconds, self._max_run_seconds = ttl_seconds, max_run_seconds
        self._stall_seconds = stall_seconds
        self._known_epoch = known_epoch
        self._ends_at = float("inf")
        self._progressed_at = time.monotonic()
        self._lost = False
        self.stopping = threading.Event()
        self.heartbeat = HeartbeatWriter(
            objects,
            paths.heartbeat(folder),
            pipeline=name,
            trigger_seconds=trigger_seconds,
            is_progressing=lambda: not self.is_stalled,
        )

    @property
    def should_stop(self) -> bool:
        """Whether the process must not begin more work."""
        return self.stopping.is_set() or time.monotonic() >= self._ends_at

    @property
    def holds_lease(self) -> bool:
        """Whether the process still holds its lease."""
        return not self._lost

    @property
    def is_stalled(self) -> bool:
        """Whether no progress was recorded for longer than `stall_seconds`."""
        return time.monotonic() - self._progressed_at > self._stall_seconds

    def record_progress(self) -> None:
        """Records progress (resets the stall timer)."""
        self._progressed_at = time.monotonic()

    def stop(self) -> None:
        """Requests the end of the process. Safe from any thread."""
        self.stopping.set()

    def pause(self, seconds: float) -> None:
        """Sleeps, at most until the process should stop. Counts as progress."""
        wait = max(0.0, min(seconds, self._ends_at - time.monotonic()))
        self._progressed_at = time.monotonic() + wait
        self.stopping.wait(wait)
        self.record_progress()

    @contextlib.contextmanager
    def hold_lease(
        self,
        *,
        on_tick: Callable[[], Any] = lambda: None,
        wait_seconds: float | None = None,
        state: StreamState = "idle",
    ) -> Iterator[Lease]:
        """Holds the lease and writes the heartbeat while the block runs.

        Args:
            on_tick: called every few seconds, except while the process is stalled.
            wait_seconds: how long to wait for another holder's lease; by default 1.5 times its time to live.
            state: initial state of the heartbeat.

        Raises:
            ConcurrencyError: LEASE_HELD. FencedError: LEASE_LOST, a successor has taken over. TransientError:
                LEASE_EXPIRED, the storage did not answer for the lease's time to live.
        """
        lease = Lease(
            self._objects,
            paths.lease(self._folder),
            ttl_seconds=self._ttl_seconds,
            name=self._name,
            known_epoch=self._known_epoch,
        )
        wait_seconds = 1.5 * self._ttl_seconds if wait_seconds is None else wait_seconds
        lease.acquire(wait_seconds=wait_seconds, should_give_up=self.stopping.is_set)
        try:
            watch_lease(lease, self._on_lost)
            self._ends_at = time.monotonic() + self._max_run_seconds
            self.record_progress()
            self.heartbeat.update(owner=lease.owner, epoch=lease.epoch, state=state)
            self.heartbeat.start()
            threading.Thread(target=self._poll, args=(on_tick,), name="observe", daemon=True).start()
            try:
                yield lease
            except Exception as error:
                if self._lost and not isinstance(error, FencedError):
                    raise lease.lost_error() from error
                if not self._lost:
                    self.heartbeat.close(state="failed", error=_error_record(error))
                raise
            if self._lost:
                raise lease.lost_error()
            self.heartbeat.close(state="ended")
        finally:
            self.stopping.set()
            lease.release()

    def _poll(self, on_tick: Callable[[], Any]) -> None:
        flag = StopFlag(self._objects, paths.stop_request(self._folder))
        while not self.stopping.wait(_STOP_POLL_SECONDS):
            with contextlib.suppress(Exception):  # errors of polling must not end the process
                if flag.read() is not None:
                    self.stop()
            with contextlib.suppress(Exception):
                if not self.is_stalled:
                    on_tick()

    def _on_lost(self) -> None:
        log.warning("%s lost its lease", self._name)
        self._lost = True
        self.stop()


def _error_record(error: Exception) -> dict[str, Any]:
    generic = {"condition": type(error).__name__, "message": str(error)}
    return error.as_record() if isinstance(error, DeltaworksError) else generic
