"""What summaries share: one that cannot be read counts as none, and a failed write fails nobody.

A summary is derived from tables, which can be read again. So whoever writes one goes on where that fails, and says so
in its log; the next writer makes up for it.
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
#: Texts of others, such as names of events and errors, are cut at so many characters.
MAX_TEXT_LENGTH = 300
_MAX_ATTEMPTS = 5
S = TypeVar("S", bound=Record)


class SummaryPart(RecordPart):
    """A piece of a summary. Fields of a later release are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Summary(Record):
    """A summary of one pipeline, as of `at`. Fields of a later release are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    pipeline: str
    at: str


def truncate(text: str, length: int = MAX_TEXT_LENGTH) -> str:
    """The text, or its beginning where it is long."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def decode_or_none(summary: type[S], data: bytes, *, key: str) -> S | None:
    """The summary that bytes hold; None where they are torn or of another format."""
    try:
        return summary.decode(data, key=key)
    except DeltaworksError as error:
        log.warning("%s", error)
        return None


def read_summary(summary: type[S], objects: ObjectStore, key: str) -> tuple[S | None, str | None]:
    """The stored summary and the tag of its object; None for a summary that is not there or cannot be read."""
    item = objects.get(key)
    return (None, None) if item is None else (decode_or_none(summary, item.data, key=key), item.etag)


def write_summary(objects: ObjectStore, key: str, summary: Record, *, etag: str | None) -> bool:
    """Write a summary where nobody has written since it was read as `etag`; whether it was written."""
    if etag is None:
        return objects.put_if_absent(key, summary.encode())
    return objects.put_if_match(key, summary.encode(), etag) is not None


def update_summary(objects: ObjectStore, key: str, summary: type[S], update: Callable[[S | None], S]) -> bool:
    """Change a summary as it is stored, anew where somebody else has written meanwhile. Without a change nothing is
    written.

    Args:
        change: the summary to store instead of the one there is, None where there is none that can be read.

    Returns:
        False where others wrote each of a few times.
    """
    for _ in range(_MAX_ATTEMPTS):
        before, etag = read_summary(summary, objects, key)
        after = update(before)
        if after == before or write_summary(objects, key, after, etag=etag):
            return True
    return False


@contextlib.contextmanager
def log_failures(what: str) -> Iterator[None]:
    """What is done within may fail: it is logged, and whoever does it goes on."""
    try:
        yield
    except Exception as error:  # derived data: the next writer makes up for it
        log.warning("%s was not written: %s", what, error)
