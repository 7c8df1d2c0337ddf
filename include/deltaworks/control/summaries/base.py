"""Shared parts of summaries: an unreadable summary counts as missing, and a failed write is only logged.

Summaries are derived from tables, so the next write restores what a failed one missed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from pydantic import ConfigDict

from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordPart
from deltaworks.errors import DeltaworksError

log = logging.getLogger(__name__)
#: Maximum length of texts such as event names and errors.
MAX_TEXT_LENGTH = 300
_MAX_ATTEMPTS = 5
S = TypeVar("S", bound=Record)


class SummaryPart(RecordPart):
    """A part of a summary. Fields of later releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Summary(Record):
    """A summary of one pipeline at time `at`. Fields of later releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

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
