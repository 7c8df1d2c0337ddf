"""Shared parts of summaries: an unreadable summary counts as missing, and a failed write is only logged.

Summaries are derived from tables, so the next write restores what a failed one missed. The stream adds the counts of
its batches to summaries by `BatchCounter`, each batch once.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pydantic import ConfigDict

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordPart
from deltaworks.errors import DeltaworksError

log = logging.getLogger(__name__)
#: Maximum length of texts such as event names and errors.
MAX_TEXT_LENGTH = 300
_MAX_ATTEMPTS = 5
#: Minimum time between writes of a `BatchCounter`.
WRITE_SECONDS: Final = 60.0
#: Maximum number of batches kept in memory while the storage does not answer.
_MAX_PENDING_BATCHES: Final = 1_000
S = TypeVar("S", bound=Record)


class SummaryPart(RecordPart):
    """A part of a summary. Fields of later releases are ignored."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Summary(Record):
    """A summary of one pipeline at time `at`. Fields of later releases are ignored."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", ser_json_inf_nan="constants")

    pipeline: str
    at: str


def truncate(text: str, length: int = MAX_TEXT_LENGTH) -> str:
    """Truncates a long text."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def decode_or_none(summary: type[S], data: bytes, *, key: str) -> S | None:
    """Parses a summary; None if it is damaged or of another format."""
    try:
        return summary.decode(data, key=key)
    except DeltaworksError as error:
        log.warning("%s", error)
        return None


def read_summary(summary: type[S], objects: ObjectStore, key: str) -> tuple[S | None, str | None]:
    """Reads a summary and its ETag; None for a missing or unreadable summary."""
    item = objects.get(key)
    return (None, None) if item is None else (decode_or_none(summary, item.data, key=key), item.etag)


def write_summary(objects: ObjectStore, key: str, summary: Record, *, etag: str | None) -> bool:
    """Writes a summary if its object still has this ETag; returns whether it was written."""
    if etag is None:
        return objects.put_if_absent(key, summary.encode())
    return objects.put_if_match(key, summary.encode(), etag) is not None


def update_summary(objects: ObjectStore, key: str, summary: type[S], update: Callable[[S | None], S]) -> bool:
    """Updates a summary by compare-and-swap, with a few attempts. Writes nothing if it does not change.

    Args:
        update: returns the new summary for the stored one, which is None if missing or unreadable.

    Returns:
        False if other writers won each attempt.
    """
    for _ in range(_MAX_ATTEMPTS):
        stored, etag = read_summary(summary, objects, key)
        updated = update(stored)
        if updated == stored or write_summary(objects, key, updated, etag=etag):
            return True
    return False


@contextlib.contextmanager
def log_failures(description: str) -> Iterator[None]:
    """Logs exceptions of the block instead of raising them."""
    try:
        yield
    except Exception as error:  # derived data: the next write restores it
        log.warning("%s was not written: %s", description, error)


class CountedSummary(Summary):
    """A summary of what batches count. `through_batch` of `generation` is the last counted batch."""

    generation: int = 1
    through_batch: int = -1


C = TypeVar("C", bound=CountedSummary)
B = TypeVar("B")


class BatchCounter(ABC, Generic[C, B]):
    """Adds what batches count to a summary, each batch once, by the stream that writes it. Single-threaded.

    The summary names the last counted batch of a checkpoint generation. If a write fails or another process writes
    meanwhile, the next write includes the same batches.

    Args:
        empty: the summary without a batch, of the stream's generation. A stored one of another generation is replaced.
        interval_seconds: minimum time between writes.
    """

    def __init__(self, objects: ObjectStore, key: str, empty: C, *, interval_seconds: float) -> None:
        self._objects, self._key, self._empty = objects, key, empty
        self._interval = timedelta(seconds=interval_seconds)
        self._pending: dict[int, B] = {}
        self._written_at: datetime | None = None

    @abstractmethod
    def with_batches(self, stored: C, batches: Mapping[int, B]) -> C:
        """Returns a summary with the counts of further batches, which are in no order."""

    def write(self, now: datetime | None = None, *, force: bool = False) -> None:
        """Writes the batches added since the last write, if the interval has passed or with `force`."""
        now = now or utc_now()
        is_due = self._written_at is None or now - self._written_at >= self._interval
        if not self._pending or not (force or is_due):
            return
        self._written_at = now
        stored, etag = read_summary(type(self._empty), self._objects, self._key)
        if stored is None or stored.generation != self._empty.generation:
            stored = self._empty
        batches = {number: batch for number, batch in self._pending.items() if number > stored.through_batch}
        if batches:
            at = now.isoformat(timespec="milliseconds")
            updated = self.with_batches(stored, batches).replace(at=at, through_batch=max(batches))
            if not write_summary(self._objects, self._key, updated, etag=etag):
                return  # another process wrote meanwhile: the next write adds to that
        self._pending.clear()

    def _remember(self, number: int, batch: B) -> None:
        """Keeps a batch until it is written. Beyond the bound further batches are not counted."""
        if number in self._pending or len(self._pending) < _MAX_PENDING_BATCHES:
            self._pending[number] = batch
