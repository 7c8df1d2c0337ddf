"""The heartbeat: one small object per stream or relay with its state, written out of band by a thread.

Health is judged by it: a process that hangs stops writing it, however good its last progress looked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run

StreamState = Literal["starting", "running", "idle", "stopping", "ended", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The state of a stream or a relay. Times are ISO 8601 in UTC. `held`: the tables whose commits are held back.

    `lost_files` counts objects that were never announced, or were gone before they were read; `lost_ranges` ranges of
    records that expired unread; `lost_examples` names some of either. `dead_letters` is about the number of messages in
    a relay's dead-letter queue. `retention_seconds` is for how long the source keeps what waits, where it says so.
    `gold_failures`: the gold tables that its stream keeps fresh and cannot build at present, with why and since when.
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
    """The last heartbeat written, or None where there never was one."""
    item = objects.get(key)
    if item is None:
        return None
    names = {field.name for field in dataclasses.fields(Heartbeat)}
    record = {name: value for name, value in json.loads(item.data).items() if name in names}
    lists = {name: tuple(record.get(name) or ()) for name in ("held", "lost_examples", "gold_failures")}
    return Heartbeat(**{**record, **lists})


def was_killed(objects: ObjectStore, key: str) -> bool:
    """Whether the run that wrote the last heartbeat was killed, or ended itself over a batch that hung.

    False where there never was one, True where it cannot be read.
    """
    try:
        last = read_heartbeat(objects, key)
    except (ValueError, TypeError):
        return True
    if last is None:
        return False
    return (last.error or {}).get("condition") == "BATCH_STALLED" or last.state not in ("ended", "failed")


class HeartbeatWriter:
    """Keeps one heartbeat object current from a thread of its own.

    A storage that fails never fails the stream: the next beat tries again, and the health check sees the age of the
    last one written. `update` and `close` are safe from any thread.

    Args:
        gets_on: whether what it speaks for gets on; while it does not, nothing is written but the last beat.
    """

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        pipeline: str,
        trigger_seconds: float,
        interval_seconds: float = 5.0,
        is_progressing: Callable[[], bool] = lambda: True,
    ) -> None:
        self._objects = objects
        self._key = key
        self._beat_seconds = interval_seconds
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
        """Begin writing."""
        self._thread.start()

    def update(self, **changes: Any) -> None:
        """Change fields of the heartbeat and write it soon."""
        with self._lock:
            self._current = dataclasses.replace(self._current, **changes)
        self._wake.set()

    @property
    def current(self) -> Heartbeat:
        """The heartbeat as the next beat writes it."""
        return self._current

    def close(self, **changes: Any) -> None:
        """Write a last beat and stop."""
        self.update(**changes)
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._beat_seconds)
            self._wake.clear()
            closing = self._closed
            if closing or self._is_progressing():
                self._write()
            if closing:
                return

    def _write(self) -> None:
        with self._lock:
            record = dataclasses.asdict(dataclasses.replace(self._current, written_at=iso_now()))
        try:
            self._objects.put(self._key, json.dumps(record).encode())
        except Exception:  # out of band by design: a failed beat shows as age
            return
