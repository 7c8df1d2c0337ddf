"""Heartbeats and stop flags: small objects by which a stream or relay reports its state and is asked to end.

A background thread writes the heartbeat. Health is evaluated from it: a hung process stops writing it, even if its last
progress looked good. A process with a stop flag ends between two batches. A stream group has one stop flag and one
backoff for its driver; everything else is stored per pipeline, in the control folders of its members.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import StateRecord

StreamState = Literal["starting", "running", "idle", "stopping", "ended", "failed"]


class Heartbeat(StateRecord):
    """The state of a stream or relay. Times are ISO 8601 in UTC.

    Args:
        held: the tables whose commits are held back.
        lost_files: objects that were never announced, or deleted before they were read.
        lost_ranges: ranges of records that expired unread. lost_examples: some lost files or ranges.
        dead_letters: approximate number of messages in a relay's dead-letter queue.
        retention_seconds: retention of the source, if it reports one.
        gold_failures: gold tables that the stream cannot build at present: reason and start of the failure.
    """

    pipeline: str
    owner: str
    epoch: int
    run: str
    state: StreamState
    written_at: str
    started_at: str
    trigger_seconds: float
    batch_id: int | None = None
    last_batch_at: str | None = None
    rows: int = 0
    quarantined: int = 0
    backlog_files: int | None = None
    backlog_bytes: int | None = None
    backlog_records: int | None = None
    oldest_pending_at: str | None = None
    error: dict[str, Any] | None = None
    held: tuple[dict[str, Any], ...] = ()
    lost_files: int = 0
    lost_ranges: int = 0
    lost_examples: tuple[str, ...] = ()
    dead_letters: int | None = None
    retention_seconds: float | None = None
    gold_failures: tuple[dict[str, Any], ...] = ()
    host: str = ""
    pid: int = 0
    ui: str | None = None


def read_heartbeat(objects: ObjectStore, key: str) -> Heartbeat | None:
    """Reads the last heartbeat, or None if there never was one.

    Raises:
        ValueError: the object is damaged.
    """
    return Heartbeat.read(objects, key)


def was_killed(objects: ObjectStore, key: str) -> bool:
    """Whether the last run was killed, or ended itself because a batch stalled.

    False if there was no run, True if the heartbeat cannot be parsed.
    """
    try:
        last = read_heartbeat(objects, key)
    except ValueError:
        return True
    if last is None:
        return False
    return (last.error or {}).get("condition") == "BATCH_STALLED" or last.state not in ("ended", "failed")


#: Longest interval of heartbeats that say nothing new. With shorter triggers it is theirs, since a heartbeat can be
#: declared stale from three of them on.
INTERVAL_SECONDS: Final = 10.0


class HeartbeatWriter:
    """Writes one heartbeat object at each interval from a background thread.

    Storage failures never stop the stream: the write is retried at the next interval, and the health check sees the age
    of the heartbeat. The methods `update` and `close` are thread-safe.

    Args:
        is_progressing: while it returns False only `close` writes, so that a stalled process has an old heartbeat.
    """

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        pipeline: str,
        trigger_seconds: float,
        interval_seconds: float | None = None,
        is_progressing: Callable[[], bool] = lambda: True,
    ) -> None:
        self._objects = objects
        self._key = key
        self._interval_seconds = interval_seconds or min(INTERVAL_SECONDS, trigger_seconds)
        self._is_progressing = is_progressing
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        now = iso_now()
        self._current = Heartbeat(
            pipeline=pipeline,
            owner="",
            epoch=0,
            run=current_run(),
            state="starting",
            written_at=now,
            started_at=now,
            trigger_seconds=trigger_seconds,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def update(self, **changes: Any) -> None:
        """Changes fields of the heartbeat and triggers a write, unless they have these values already."""
        with self._lock:
            before = self._current
            self._current = before.replace(**changes)
            is_changed = self._current != before
        if is_changed:
            self._wake.set()

    @property
    def current(self) -> Heartbeat:
        """The heartbeat that the next write stores."""
        return self._current

    def close(self, **changes: Any) -> None:
        """Writes a final heartbeat and stops the thread."""
        self.update(**changes)
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._interval_seconds)
            self._wake.clear()
            closing = self._closed
            if closing or self._is_progressing():
                self._write()
            if closing:
                return

    def _write(self) -> None:
        with self._lock:
            record = self._current.replace(written_at=iso_now())
        try:
            self._objects.put(self._key, record.encode())
        except Exception:  # the health check sees a failed write as an old heartbeat
            return


class StopRequest(StateRecord):
    """Who requested the stop, why and when; `group` if it stops a stream group."""

    by: str
    reason: str
    at: str
    group: str = ""

    def restart_command(self, name: str) -> str:
        """The command that withdraws the request."""
        return f"deltaworks start --group {self.group}" if self.group else f"deltaworks start {name}"


class StopFlag:
    """One stop flag. Setting and clearing are idempotent."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key

    def set(self, *, by: str, reason: str) -> StopRequest:
        """Requests a stop."""
        request = StopRequest(by=by, reason=reason, at=iso_now())
        self._objects.put(self._key, request.encode())
        return request

    def clear(self) -> None:
        """Withdraws the request."""
        self._objects.delete(self._key)

    def read(self) -> StopRequest | None:
        """Reads the current request, if there is one.

        Raises:
            ValueError: the object is damaged.
        """
        return StopRequest.read(self._objects, self._key)


def group_stop_flag(objects: ObjectStore, group: str) -> StopFlag:
    """Returns the flag that stops a group's driver and prevents the next one from starting."""
    return StopFlag(objects, paths.stop_request(paths.group_control(group)))


def group_backoff(objects: ObjectStore, group: str) -> RestartBackoff:
    """Returns the backoff of a group's driver, which counts failures that end all members."""
    return RestartBackoff(objects, paths.failures(paths.group_control(group)))
