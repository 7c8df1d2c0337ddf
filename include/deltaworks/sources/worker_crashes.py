"""Finds the payloads that crash Python workers: a marker names the payload a task opens, and crashes are counted.

A Python worker that crashes, or is killed for its memory or run time, does not report which payload it was reading.
After such a failure the batch is read again by one task at a time, which writes the payload's `seq` to shared storage
before it opens it. After the next crash, or in the next run if the driver crashed too, the marker names the payload. A
pass without a crash writes nothing here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, last_error_in
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

_CRASHED = re.compile(r"Python worker exited unexpectedly|Python worker process .{0,40}terminated")
_LOST = re.compile(r"\bExecutorLostFailure\b")
_FAILED = re.compile(r"\bdeltaworks\.sources\.worker_crashes\.TaskFailed: ([A-Za-z_.]+)")


#: The content of a marker: the `seq` being opened, None if no payload is open, and its position in the pass.
OpenPosition = dict[str, int | None]


class TaskFailed(Exception):
    """Raised by a task that cannot write its rows because of their values. The message is the type of the original
    error.
    """


def crash_cause(error: BaseException) -> str | None:
    """Returns how a task crashed, from the error of a Spark job; None if the error is no crash.

    Errors raised by Deltaworks, and failures of a storage or server, are no crashes.
    """
    stack = getattr(error, "_stackTrace", None) or getattr(error, "stackTrace", None) or ""
    text = f"{error}\n{stack}"
    if last_error_in(text) is not None:
        return None
    if _CRASHED.search(text):
        return "the Python worker crashed or was killed"
    if _LOST.search(text):
        return "the executor was lost"
    failed = _FAILED.findall(text)
    return f"its rows could not be written: {failed[-1]}" if failed else None


@dataclass(frozen=True, slots=True)
class OpenMarker:
    """The object in which a task records the payload it opens. Sent to tasks with resolved secrets."""

    storage: str
    variables: dict[str, str]
    key: str

    @classmethod
    def of(cls, storage: StorageSpec, key: str) -> OpenMarker:
        """Creates a marker at a key of a storage."""
        return cls(storage.model_dump_json(), resolved_variables(storage), key)

    def write(self, position: OpenPosition) -> None:
        """Records the next payload before it is opened."""
        set_missing_variables(self.variables)
        _objects(self.storage, os.getpid()).put(self.key, json.dumps(position).encode())


@lru_cache(maxsize=4)
def _objects(storage: str, _process: int) -> ObjectStore:
    return open_objects(StorageSpec.model_validate_json(storage))


@dataclass(slots=True, kw_only=True)
class CrashIsolation:
    """Crash counts of one batch, and the settings for reading it after a crash. Used only by the driver, in one thread.

    Attributes:
        objects: shared storage; state of the batch is stored below `folder`.
        storage: the same storage, as tasks open it.
        max_crashes: number of crashes after which a payload is quarantined.
        payload_timeout_seconds: how long a task may process one payload.
        start_isolated: whether the first pass is isolated, because the previous driver died on this batch.
        on_job_start: called before each job; there may be many.
        probe: runs a job on a payload that every worker can read; raises Spark's error if the worker crashes.
    """

    objects: ObjectStore
    storage: StorageSpec
    folder: str
    max_crashes: int
    payload_timeout_seconds: float
    start_isolated: bool = False
    on_job_start: Callable[[], None] = lambda: None
    probe: Callable[[], None] = lambda: None
    crashes: dict[int, int] = field(default_factory=dict)
    _causes: dict[int, str] = field(default_factory=dict)
    _is_started: bool = False
    _confirmed: set[int] = field(default_factory=set)
    _has_success: bool = False
    _job_started_at: float = 0.0

    @property
    def marker(self) -> OpenMarker:
        """The marker that the tasks of the batch write."""
        return OpenMarker.of(self.storage, self._marker_key)

    def start(self) -> None:
        """Loads the crash counts of an earlier run. If that run ended with a payload open, counts a crash for it.
        Idempotent.
        """
        if self._is_started:
            return
        self._is_started = True
        stored = self.objects.get(self._crashes_key)
        if stored is not None:
            self.crashes = {int(seq): count for seq, count in json.loads(stored.data).items()}
        self.record_crash("the driver died as well")

    def start_job(self) -> None:
        """Records the start of a job of one task."""
        self.on_job_start()
        self._job_started_at = time.monotonic()

    def record_crash(self, cause: str) -> OpenPosition | None:
        """Counts a crash for the open payload and deletes the marker. Returns the marker's position; None without a
        marker.
        """
        stored = self.objects.get(self._marker_key)
        if stored is None:
            return None
        position: OpenPosition = json.loads(stored.data)
        seq = position.get("seq")
        if seq is not None:
            if self._job_started_at and time.monotonic() - self._job_started_at >= self.payload_timeout_seconds:
                cause = f"{cause}; the limit is {self.payload_timeout_seconds:.0f} s per payload"
            self.crashes[seq] = self.crashes.get(seq, 0) + 1
            self._causes[seq] = cause
            self.objects.put(self._crashes_key, json.dumps(self.crashes).encode())
        self.objects.delete(self._marker_key)
        return position

    def clear_marker(self) -> None:
        """Deletes the marker after a job without a crash, so that a later crash of the driver is not counted for its
        payload.
        """
        with contextlib.suppress(Exception):  # a leftover marker counts as one crash, and quarantine takes several
            self.objects.delete(self._marker_key)

    def skip_reasons(self) -> dict[int, str]:
        """Returns the payloads that are no longer opened, by `seq`, with the detail for quarantine."""
        return {
            seq: (
                f"{count} of {self.max_crashes} tasks reading it crashed: {self._causes.get(seq, 'in an earlier run')}"
            )
            for seq, count in self.crashes.items()
            if count >= self.max_crashes
        }

    def record_success(self) -> None:
        """Records that a worker read a payload without a crash."""
        self._has_success = True

    def check_workers(self) -> None:
        """Before a payload is quarantined, verifies that workers do not crash on every payload. Call it before each
        job.

        A payload that was read since the last quarantined one proves it; otherwise the probe runs.

        Raises:
            ConfigError: WORKERS_CRASH, the probe crashes too; the crash counts are deleted.
        """
        blamed = self.skip_reasons().keys() - self._confirmed
        if not blamed:
            return
        if not self._has_success:
            self._run_probe()
        self._confirmed |= blamed
        self._has_success = False

    def _run_probe(self) -> None:
        """Runs the probe up to `max_crashes` times, until it succeeds."""
        cause: str | None = None
        for _ in range(self.max_crashes):
            self.start_job()
            try:
                self.probe()
            except Exception as error:
                cause = crash_cause(error)
                if cause is None:
                    raise
            else:
                return
        self.clear()
        raise ConfigError(
            "WORKERS_CRASH",
            "The Python workers crash on every payload, including a test payload of a few bytes that every worker can "
            f"read: {cause}. No payload is quarantined.",
        )

    def clear(self) -> None:
        """Deletes the batch's state after the batch is prepared."""
        if self._is_started:
            self.objects.delete(self._marker_key)
            self.objects.delete(self._crashes_key)

    @property
    def _marker_key(self) -> str:
        return f"{self.folder}/open_marker.json"

    @property
    def _crashes_key(self) -> str:
        return f"{self.folder}/crashes.json"
