"""Looks at a spool that a process left behind: cuts what was never promised, puts damage aside, and counts on.

A crash may leave the group of the last write in parts. Nobody was told of it, so it goes. Anything else that cannot be
read is damage: the events around it are kept, and the file as it was stays beside them as `.damaged`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from collector.folder import DAMAGED_SUFFIX, SpoolFolder, sync_folder
from collector.segments import HEADER_BYTES, Frame, Kind, Segment, SegmentHeader, Unreadable, first_seq_of
from deltaworks.errors import ContractError

_REPAIRED_SUFFIX = ".repaired"


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that could not be read, and the numbers of the events that were in them."""

    path: Path
    start: int
    end: int
    reason: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A folder that can be written to: the number of its next event, bytes that were cut off, and what was damaged."""

    next_seq: int
    cut_bytes: int
    damages: tuple[Damage, ...]


def recover(folder: SpoolFolder) -> Recovered:
    """Make a folder fit to be written to and drained. Idempotent: after a crash within it, it is done anew.

    Nothing else may use the folder meanwhile.

    Raises:
        ContractError: SPOOL_SEGMENT_UNKNOWN, a segment is of another release; SPOOL_FOLDER_DAMAGED, nobody can say how
            far sinks are.
    """
    next_seq, cut_bytes = _next_of_progress(folder.path), 0
    damages: list[Damage] = []
    segments = folder.segments()
    for at, path in enumerate(segments):
        after = first_seq_of(segments[at + 1].name) if at + 1 < len(segments) else None
        mended = _Mending(path, after).mend(folder.collector)
        next_seq, cut_bytes = max(next_seq, mended.next_seq), cut_bytes + mended.cut_bytes
        damages += mended.damages
    sync_folder(folder.path)
    return Recovered(next_seq, cut_bytes, tuple(damages))


class _Mending:
    """One segment; `after` is the first number of the next one, None of the newest."""

    def __init__(self, path: Path, after: int | None) -> None:
        self._path = path
        self._after = after
        self._first = first_seq_of(path.name) or 0

    def mend(self, collector: bytes) -> Recovered:
        segment = Segment.open(self._path)
        frames, unreadable = self._frames(segment)
        good_end = frames[-1].end if frames else HEADER_BYTES
        size = self._path.stat().st_size
        if segment.header is None:
            if not frames and self._after is None:
                self._path.unlink()  # its making was cut off: its name was not durable, and nothing in it promised
                return Recovered(self._first, size, ())
            unreadable.insert(0, Unreadable(0, HEADER_BYTES, "the segment's head is none", at_end=False))
        torn = unreadable and unreadable[-1].at_end and self._after is None
        damages = self._damages(frames, unreadable[:-1] if torn else unreadable)
        last = max((frame.seq for frame in frames if frame.kind == Kind.EVENT), default=self._first - 1)
        next_seq = last + 1 if self._after is None else self._after
        if damages:
            self._put_aside(frames, collector)
            return Recovered(next_seq, 0, tuple(damages))
        if not frames and self._after is None:
            self._path.unlink()  # the next one has its number, and so its name
        elif good_end < size:
            _cut(self._path, good_end)
        return Recovered(next_seq, size - good_end, ())

    def _frames(self, segment: Segment) -> tuple[list[Frame], list[Unreadable]]:
        """Frames without their payloads in memory, and what lies between them."""
        frames, unreadable = [], []
        for item in segment.items():
            if isinstance(item, Unreadable):
                unreadable.append(item)
            elif self._after is None or item.seq < self._after:
                frames.append(Frame(item.seq, item.kind, item.source, b"", item.start, item.end))
            else:
                break  # written, never promised, and its number given to an event of the next segment
        return frames, unreadable

    def _damages(self, frames: list[Frame], unreadable: list[Unreadable]) -> list[Damage]:
        """What is missing, as the numbers around it say; bytes between numbers that are all there were no events."""
        damages = []
        events = [frame for frame in frames if frame.kind == Kind.EVENT]
        for gap in unreadable:
            before = max((frame.seq for frame in events if frame.end <= gap.start), default=self._first - 1)
            behind = min((frame.seq for frame in events if frame.start >= gap.end), default=self._after)
            if gap.at_end and behind is not None and before + 1 >= behind:
                continue  # what a failed sync left behind the last promised event
            last = before if behind is None else behind - 1
            damages.append(Damage(self._path, gap.start, gap.end, gap.reason, before + 1, last))
        return damages

    def _put_aside(self, frames: list[Frame], collector: bytes) -> None:
        """Keep the damaged file beside one that holds its good frames; at every moment the segment's name has one."""
        damaged = self._path.with_name(self._path.name + DAMAGED_SUFFIX)
        repaired = self._path.with_name(self._path.name + _REPAIRED_SUFFIX)
        created_ms = int(self._path.stat().st_mtime * 1000)
        with self._path.open("rb") as source, repaired.open("wb") as target:
            target.write(SegmentHeader(collector, self._first, created_ms).encoded())
            for frame in frames:
                source.seek(frame.start)
                target.write(source.read(frame.end - frame.start))
            target.flush()
            os.fsync(target.fileno())
        if not damaged.exists():
            os.link(self._path, damaged)
        sync_folder(self._path.parent)
        repaired.replace(self._path)
        sync_folder(self._path.parent)


def _cut(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _next_of_progress(folder: Path) -> int:
    """The number behind the last one a sink has or has planned: segments that are done are gone."""
    file = folder / "progress.json"
    if not file.exists():
        return 1
    try:
        return _largest(orjson.loads(file.read_bytes())) + 1
    except orjson.JSONDecodeError as error:
        raise ContractError(
            "SPOOL_FOLDER_DAMAGED",
            f"{file} is no JSON, so that nobody can say how far sinks are.",
            hint="Put it back from a copy, or start with a new folder and leave this one to be drained.",
        ) from error


def _largest(value: Any) -> int:
    """The largest `done` or `last` at any depth."""
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    if not isinstance(value, dict):
        return 0
    own = [number for key in ("done", "last") if isinstance(number := value.get(key), int)]
    return max([*own, *map(_largest, value.values())], default=0)
