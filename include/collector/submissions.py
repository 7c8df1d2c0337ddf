"""What is handed to a spool, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from collector.segments import Kind, encode_frame


class Entry(NamedTuple):
    """What becomes a frame. Between the `parts` of an event's text its number is written; one part has no number."""

    source: int
    parts: tuple[bytes, ...]
    kind: int = Kind.EVENT


class Written(NamedTuple):
    """What became of a request: the number of its first event, or why it is not in the spool (`spool_full`, `disk`)."""

    first_seq: int | None = None
    problem: str | None = None


Done = Callable[[Written], None]


class Submission(NamedTuple):
    """The entries of one request, and who waits for them."""

    entries: Sequence[Entry]
    done: Done

    @property
    def size_bytes(self) -> int:
        """What they take, but for their frames."""
        return sum(len(part) for entry in self.entries for part in entry.parts)


#: Told of a group: who waited, and what became of each. Called in the writer's thread, once a group.
Wake = Callable[[list[tuple[Done, Written]]], None]


def wake_at_once(results: list[tuple[Done, Written]]) -> None:
    """Answer in the writer's thread itself."""
    for done, written in results:
        done(written)


def frames_of(group: Sequence[Submission], next_seq: int) -> tuple[bytes, list[int], int]:
    """The frames of a group from event `next_seq` on, the number of each request's first event, and the next one."""
    frames: list[bytes] = []
    firsts: list[int] = []
    seq = next_seq
    for submission in group:
        firsts.append(seq)
        for source, parts, kind in submission.entries:
            frames.append(encode_frame(seq, kind, source, (b"%d" % seq).join(parts)))
            seq += kind == Kind.EVENT
    return b"".join(frames), firsts, seq


class Acceptance(Protocol):
    """What makes events durable: the spool, or a sink itself."""

    def submit(self, entries: list[Entry], done: Done) -> None:
        """Have entries made durable; `done` is given what became of them."""

    def refusal(self) -> str | None:
        """Why nothing can be taken now."""

    def fill(self) -> float:
        """How full it is, from 0 to 1."""


class _TakesAll(Protocol):
    """A spool, as far as it is handed requests and asked for room."""

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Take them in their order."""

    def refusal(self) -> str | None:
        """Why nothing can be taken now."""

    def fill(self) -> float:
        """How full it is, from 0 to 1."""


class HandOver:
    """Hands what one turn of the event loop has read to the spool's thread at once, not request by request.

    That thread would else be woken for the first of them, and sync it alone. Of the event loop's thread.
    """

    def __init__(self, spool: _TakesAll, loop: asyncio.AbstractEventLoop) -> None:
        self._spool = spool
        self._loop = loop
        self._read: list[Submission] = []

    def submit(self, entries: list[Entry], done: Done) -> None:
        """Have entries written with all others of this turn."""
        if not self._read:
            self._loop.call_soon(self._hand_over)
        self._read.append(Submission(entries, done))

    def refusal(self) -> str | None:
        """That of the spool."""
        return self._spool.refusal()

    def fill(self) -> float:
        """That of the spool."""
        return self._spool.fill()

    def _hand_over(self) -> None:
        read, self._read = self._read, []
        self._spool.submit_all(read)
