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
from deltaworks.errors import ConfigError, error_in
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

_CRASHED = re.compile(r"Python worker exited unexpectedly|Python worker process .{0,40}terminated")
_LOST = re.compile(r"\bExecutorLostFailure\b")
_FAILED = re.compile(r"\bdeltaworks\.sources\.deaths\.TaskFailed: ([A-Za-z_.]+)")


#: What a task notes: the `seq` it opens, None where it opens no more, and where that is in the pass.
Place = dict[str, int | None]


class TaskFailed(Exception):
    """What a task raises where its rows cannot be written for what is in them; its text is the kind of the error."""


def death_in(error: BaseException) -> str | None:
    """How a task died, where an error of a Spark job says that one did; None for any other error.

    An error of ours, or of a storage or a server that fails, is no death.
    """
    stack = getattr(error, "_stackTrace", None) or getattr(error, "stackTrace", None) or ""
    text = f"{error}\n{stack}"
    if error_in(text) is not None:
        return None
    if _CRASHED.search(text):
        return "the Python worker crashed, or was ended"
    if _LOST.search(text):
        return "the executor was lost"
    failed = _FAILED.findall(text)
    return f"its rows could not be written: {failed[-1]}" if failed else None


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """Where a task notes what it opens. Travels to tasks; carries the values that the storage refers to."""

    storage: str
    variables: dict[str, str]
    key: str

    @classmethod
    def of(cls, storage: StorageSpec, key: str) -> OpenedRecord:
        """The record at a key of a storage."""
        return cls(storage.model_dump_json(), resolved_variables(storage), key)

    def note(self, place: Place) -> None:
        """Put on record what is opened next, before it is opened."""
        set_missing_variables(self.variables)
        _objects(self.storage, os.getpid()).put(self.key, json.dumps(place).encode())


@lru_cache(maxsize=4)
def _objects(storage: str, _process: int) -> ObjectStore:
    return open_objects(StorageSpec.model_validate_json(storage))


@dataclass(slots=True, kw_only=True)
class Care:
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
    most_deaths: int
    payload_seconds: float
    at_once: bool = False
    on_job: Callable[[], None] = lambda: None
    canary: Callable[[], None] = lambda: None
    deaths: dict[int, int] = field(default_factory=dict)
    _causes: dict[int, str] = field(default_factory=dict)
    _used: bool = False
    _judged: set[int] = field(default_factory=set)
    _read_well: bool = False
    _job_began: float = 0.0

    @property
    def opened(self) -> OpenedRecord:
        """What the tasks of the batch note on."""
        return OpenedRecord.of(self.storage, self._opened_key)

    def begin(self) -> None:
        """Take in what an earlier run left on record; what it had open when it died has one death more."""
        if self._used:
            return
        self._used = True
        item = self.objects.get(self._deaths_key)
        if item is not None:
            self.deaths = {int(seq): count for seq, count in json.loads(item.data).items()}
        self.add_death("the driver died too")

    def before_job(self) -> None:
        """A job of one task begins."""
        self.on_job()
        self._job_began = time.monotonic()

    def add_death(self, cause: str) -> Place | None:
        """Count a death on what was open, if anything was, before it is opened again; what was noted last."""
        item = self.objects.get(self._opened_key)
        if item is None:
            return None
        place: Place = json.loads(item.data)
        seq = place.get("seq")
        if seq is not None:
            if self._job_began and time.monotonic() - self._job_began >= self.payload_seconds:
                cause = f"{cause}; it may be open for {self.payload_seconds:.0f} s"
            self.deaths[seq] = self.deaths.get(seq, 0) + 1
            self._causes[seq] = cause
            self.objects.put(self._deaths_key, json.dumps(self.deaths).encode())
        self.objects.delete(self._opened_key)
        return place

    def forget_opened(self) -> None:
        """A job has ended without a death: what it had open is not to blame, also where the driver dies now."""
        with contextlib.suppress(Exception):  # left behind, it counts as a death, of which it takes several
            self.objects.delete(self._opened_key)

    def blamed(self) -> dict[int, str]:
        """The payloads that are opened no more, and what quarantine says of them."""
        return {
            seq: f"{count} of {self.most_deaths} tasks that read it died: {self._causes.get(seq, 'in an earlier run')}"
            for seq, count in self.deaths.items()
            if count >= self.most_deaths
        }

    def note_read_well(self) -> None:
        """A payload was read by a worker that lived on."""
        self._read_well = True

    def judge(self) -> None:
        """See, before a payload is given up, that it is not the workers who die on everything.

        A payload that was read well since the last one was given up says so, or the canary. Call it before each job.

        Raises:
            ConfigError: WORKERS_DIE, on the canary too; nothing on record blames a payload any more.
        """
        blamed = self.blamed().keys() - self._judged
        if not blamed:
            return
        if not self._read_well:
            self._send_canary()
        self._judged |= blamed
        self._read_well = False

    def _send_canary(self) -> None:
        """Let the canary be read as often as tasks may die on a payload."""
        cause: str | None = None
        for _ in range(self.most_deaths):
            self.before_job()
            try:
                self.canary()
            except Exception as error:
                cause = death_in(error)
                if cause is None:
                    raise
            else:
                return
        self.end()
        raise ConfigError(
            "WORKERS_DIE",
            "The Python workers die on whatever they read, also on a payload of a few bytes that every worker can "
            f"read: {cause}. No payload is quarantined for it.",
            hint="Find out from the executor's log what they die of (a library of this environment that is broken, or "
            "made for another machine; a `stream.task_memory` too small to work at all), mend it, start the stream.",
        )

    def end(self) -> None:
        """The batch is fixed: nothing on record of it is needed any more."""
        if self._used:
            self.objects.delete(self._opened_key)
            self.objects.delete(self._deaths_key)

    @property
    def _opened_key(self) -> str:
        return f"{self.folder}/opened.json"

    @property
    def _deaths_key(self) -> str:
        return f"{self.folder}/deaths.json"
