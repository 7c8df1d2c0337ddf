"""Submissions to a spool, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from collector.segments import FRAME_BYTES, FrameKind, encode_frame

#: Digits of the largest event number.
_SEQ_DIGITS = 20


class Entry(NamedTuple):
    """The content of a frame. The event number is inserted between the two `parts` of its text; text in one part
    contains no number.
    """

    source: int
    parts: tuple[bytes, ...]
    kind: int = FrameKind.EVENT


class WriteResult(NamedTuple):
    """The result of a request: the number of its first event, or why it was not written (`spool_full`, `disk`)."""

    first_seq: int | None = None
    problem: str | None = None


OnWritten = Callable[[WriteResult], None]


class Submission(NamedTuple):
    """The entries of one request, and the callback for their result."""

    entries: Sequence[Entry]
    on_written: OnWritten

    @property
    def size_bytes(self) -> int:
        """The size of all entries, without frame headers."""
        return sum(len(part) for entry in self.entries for part in entry.parts)

    @property
    def frame_bytes(self) -> int:
        """The size of all frames, with the longest event number."""
        return self.size_bytes + len(self.entries) * (FRAME_BYTES + _SEQ_DIGITS)


#: Called once per group, in the writer's thread, with the callbacks and results of its requests.
OnGroupWritten = Callable[[list[tuple[OnWritten, WriteResult]]], None]


def call_directly(results: list[tuple[OnWritten, WriteResult]]) -> None:
    """Calls the callbacks in the writer's thread."""
    for on_written, written in results:
        on_written(written)


def encode_group(group: Sequence[Submission], next_seq: int) -> tuple[bytes, list[int], int]:
    """Encodes the frames of a group, whose first event has the number `next_seq`.

    Returns:
        The frames, the first event number of each request, and the next number.
    """
    frames: list[bytes] = []
    first_seqs: list[int] = []
    seq = next_seq
    for submission in group:
        first_seqs.append(seq)
        for source, parts, kind in submission.entries:
            frames.append(encode_frame(seq, kind, source, (b"%d" % seq).join(parts)))
            seq += kind == FrameKind.EVENT
    return b"".join(frames), first_seqs, seq


class DurableWriter(Protocol):
    """A writer that makes events durable: a spool, or a sink."""

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        """Writes entries durably and calls `on_written` with the result."""

    def rejection_reason(self) -> str | None:
        """Returns why requests are rejected now; None if they are accepted."""

    def fill_ratio(self) -> float:
        """Returns how full the storage is, from 0 to 1."""


class _GroupWriter(Protocol):
    """The spool methods that `BatchingWriter` needs."""

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Queues submissions in order."""

    def rejection_reason(self) -> str | None:
        """Returns why requests are rejected now; None if they are accepted."""

    def fill_ratio(self) -> float:
        """Returns how full the storage is, from 0 to 1."""


class BatchingWriter:
    """Submits all requests of one event loop iteration to the spool together. Used only in the event loop's thread.

    If each request was submitted alone, the first one would wake the spool's thread, which would sync it alone.
    """

    def __init__(self, spool: _GroupWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._spool = spool
        self._loop = loop
        self._pending: list[Submission] = []

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        """Queues entries for the end of this event loop iteration."""
        if not self._pending:
            self._loop.call_soon(self._submit_pending)
        self._pending.append(Submission(entries, on_written))

    def rejection_reason(self) -> str | None:
        """Returns the spool's rejection reason."""
        return self._spool.rejection_reason()

    def fill_ratio(self) -> float:
        """Returns the spool's fill ratio."""
        return self._spool.fill_ratio()

    def _submit_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._spool.submit_all(pending)
