"""Payloads on which tasks died: what a task has open, on record before it opens it, and how often it died there.

A Python worker that crashes, or is ended for its memory or its time, tells nobody what it was reading. So when a pass
over a batch has failed that way, the batch is read again by one task at a time, which puts the payload's `seq` on
shared storage before it opens it. After a death, or in the next run where the driver died too, that is the one. A pass
that goes well writes nothing here.
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


#: What a task notes: the `seq` it opens, None where it opens no more, and where that is in the pass.
OpenPosition = dict[str, int | None]


class TaskFailed(Exception):
    """What a task raises where its rows cannot be written for what is in them; its text is the kind of the error."""


def crash_cause(error: BaseException) -> str | None:
    """How a task died, where an error of a Spark job says that one did; None for any other error.

    An error of ours, or of a storage or a server that fails, is no death.
    """
    stack = getattr(error, "_stackTrace", None) or getattr(error, "stackTrace", None) or ""
    text = f"{error}\n{stack}"
    if last_error_in(text) is not None:
        return None
    if _CRASHED.search(text):
        return "the Python worker crashed, or was ended"
    if _LOST.search(text):
        return "the executor was lost"
    failed = _FAILED.findall(text)
    return f"its rows could not be written: {failed[-1]}" if failed else None


@dataclass(frozen=True, slots=True)
class OpenMarker:
    """Where a task notes what it opens. Travels to tasks; carries the values that the storage refers to."""

    storage: str
    variables: dict[str, str]
    key: str

    @classmethod
    def of(cls, storage: StorageSpec, key: str) -> OpenMarker:
        """The record at a key of a storage."""
        return cls(storage.model_dump_json(), resolved_variables(storage), key)

    def write(self, place: OpenPosition) -> None:
        """Put on record what is opened next, before it is opened."""
        set_missing_variables(self.variables)
        _objects(self.storage, os.getpid()).put(self.key, json.dumps(place).encode())


@lru_cache(maxsize=4)
def _objects(storage: str, _process: int) -> ObjectStore:
    return open_objects(StorageSpec.model_validate_json(storage))


@dataclass(slots=True, kw_only=True)
class CrashIsolation:
    """How one batch is read where tasks die on it. Used by the driver alone, by one thread.

    Attributes:
        objects: shared storage; what is on record of the batch lies below `folder` in it.
        storage: the same storage, as tasks open it.
        most_deaths: after so many deaths on a payload it is quarantined.
        payload_seconds: for how long a task may have one payload open.
        at_once: whether the first pass is careful already, since whoever read this batch last has died.
        on_job: called before each job, of which there may be many.
        canary: runs a job that reads a payload which every worker can read; it raises what Spark says of a death.
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
        """What the tasks of the batch note on."""
        return OpenMarker.of(self.storage, self._marker_key)

    def start(self) -> None:
        """Take in what an earlier run left on record; what it had open when it died has one death more."""
        if self._is_started:
            return
        self._is_started = True
        item = self.objects.get(self._crashes_key)
        if item is not None:
            self.crashes = {int(seq): count for seq, count in json.loads(item.data).items()}
        self.record_crash("the driver died too")

    def start_job(self) -> None:
        """A job of one task begins."""
        self.on_job_start()
        self._job_started_at = time.monotonic()

    def record_crash(self, cause: str) -> OpenPosition | None:
        """Count a death on what was open, if anything was, before it is opened again; what was noted last."""
        item = self.objects.get(self._marker_key)
        if item is None:
            return None
        place: OpenPosition = json.loads(item.data)
        seq = place.get("seq")
        if seq is not None:
            if self._job_started_at and time.monotonic() - self._job_started_at >= self.payload_timeout_seconds:
                cause = f"{cause}; it may be open for {self.payload_timeout_seconds:.0f} s"
            self.crashes[seq] = self.crashes.get(seq, 0) + 1
            self._causes[seq] = cause
            self.objects.put(self._crashes_key, json.dumps(self.crashes).encode())
        self.objects.delete(self._marker_key)
        return place

    def clear_marker(self) -> None:
        """A job has ended without a death: what it had open is not to blame, also where the driver dies now."""
        with contextlib.suppress(Exception):  # left behind, it counts as a death, of which it takes several
            self.objects.delete(self._marker_key)

    def skip_reasons(self) -> dict[int, str]:
        """The payloads that are opened no more, and what quarantine says of them."""
        return {
            seq: f"{count} of {self.max_crashes} tasks that read it died: {self._causes.get(seq, 'in an earlier run')}"
            for seq, count in self.crashes.items()
            if count >= self.max_crashes
        }

    def record_success(self) -> None:
        """A payload was read by a worker that lived on."""
        self._has_success = True

    def check_workers(self) -> None:
        """See, before a payload is given up, that it is not the workers who die on everything.

        A payload that was read well since the last one was given up says so, or the canary. Call it before each job.

        Raises:
            ConfigError: WORKERS_CRASH, on the canary too; nothing on record blames a payload any more.
        """
        blamed = self.skip_reasons().keys() - self._confirmed
        if not blamed:
            return
        if not self._has_success:
            self._run_probe()
        self._confirmed |= blamed
        self._has_success = False

    def _run_probe(self) -> None:
        """Let the canary be read as often as tasks may die on a payload."""
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
            "The Python workers die on whatever they read, also on a payload of a few bytes that every worker can "
            f"read: {cause}. No payload is quarantined for it.",
            hint="Find out from the executor's log what they die of (a library of this environment that is broken, or "
            "made for another machine; a `stream.task_memory` too small to work at all), mend it, start the stream.",
        )

    def clear(self) -> None:
        """The batch is fixed: nothing on record of it is needed any more."""
        if self._is_started:
            self.objects.delete(self._marker_key)
            self.objects.delete(self._crashes_key)

    @property
    def _marker_key(self) -> str:
        return f"{self.folder}/open_marker.json"

    @property
    def _crashes_key(self) -> str:
        return f"{self.folder}/crashes.json"
