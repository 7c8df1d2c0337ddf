"""What is handed to a spool, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from collector.segments import FrameKind, encode_frame


class Entry(NamedTuple):
    """What becomes a frame. Between the `parts` of an event's text its number is written; one part has no number."""

    source: int
    parts: tuple[bytes, ...]
    kind: int = FrameKind.EVENT


class WriteResult(NamedTuple):
    """What became of a request: the number of its first event, or why it is not in the spool (`spool_full`, `disk`)."""

    first_seq: int | None = None
    problem: str | None = None


OnWritten = Callable[[WriteResult], None]


class Submission(NamedTuple):
    """The entries of one request, and who waits for them."""

    entries: Sequence[Entry]
    on_written: OnWritten

    @property
    def size_bytes(self) -> int:
        """What they take, but for their frames."""
        return sum(len(part) for entry in self.entries for part in entry.parts)


#: Told of a group: who waited, and what became of each. Called in the writer's thread, once a group.
OnGroupWritten = Callable[[list[tuple[OnWritten, WriteResult]]], None]


def call_directly(results: list[tuple[OnWritten, WriteResult]]) -> None:
    """Answer in the writer's thread itself."""
    for done, written in results:
        done(written)


def encode_group(group: Sequence[Submission], next_seq: int) -> tuple[bytes, list[int], int]:
    """The frames of a group from event `next_seq` on, the number of each request's first event, and the next one."""
    frames: list[bytes] = []
    firsts: list[int] = []
    seq = next_seq
    for submission in group:
        firsts.append(seq)
        for source, parts, kind in submission.entries:
            frames.append(encode_frame(seq, kind, source, (b"%d" % seq).join(parts)))
            seq += kind == FrameKind.EVENT
    return b"".join(frames), firsts, seq


class DurableWriter(Protocol):
    """What makes events durable: the spool, or a sink itself."""

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        """Have entries made durable; `done` is given what became of them."""

    def rejection_reason(self) -> str | None:
        """Why nothing can be taken now."""

    def fill_ratio(self) -> float:
        """How full it is, from 0 to 1."""


class _GroupWriter(Protocol):
    """A spool, as far as it is handed requests and asked for room."""

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Take them in their order."""

    def rejection_reason(self) -> str | None:
        """Why nothing can be taken now."""

    def fill_ratio(self) -> float:
        """How full it is, from 0 to 1."""


class BatchingWriter:
    """Hands what one turn of the event loop has read to the spool's thread at once, not request by request.

    That thread would else be woken for the first of them, and sync it alone. Of the event loop's thread.
    """

    def __init__(self, spool: _GroupWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._spool = spool
        self._loop = loop
        self._pending: list[Submission] = []

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        """Have entries written with all others of this turn."""
        if not self._pending:
            self._loop.call_soon(self._submit_pending)
        self._pending.append(Submission(entries, on_written))

    def rejection_reason(self) -> str | None:
        """That of the spool."""
        return self._spool.rejection_reason()

    def fill_ratio(self) -> float:
        """That of the spool."""
        return self._spool.fill_ratio()

    def _submit_pending(self) -> None:
        read, self._pending = self._pending, []
        self._spool.submit_all(read)
