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

from collector.segments import (
    HEADER_BYTES,
    Frame,
    FrameKind,
    Segment,
    SegmentHeader,
    UnreadableBytes,
    parse_segment_name,
)
from collector.spool_folder import DAMAGED_SUFFIX, SpoolFolder, sync_folder
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
class RecoveredSpool:
    """A folder that can be written to: the number of its next event, bytes that were cut off, and what was damaged."""

    next_seq: int
    cut_bytes: int
    damages: tuple[Damage, ...]


def recover(folder: SpoolFolder) -> RecoveredSpool:
    """Make a folder fit to be written to and drained. Idempotent: after a crash within it, it is done anew.

    Nothing else may use the folder meanwhile.

    Raises:
        ContractError: SPOOL_SEGMENT_UNKNOWN, a segment is of another release; SPOOL_FOLDER_DAMAGED, nobody can say how
            far sinks are.
    """
    next_seq, cut_bytes = _next_seq_from_progress(folder.path), 0
    damages: list[Damage] = []
    segments = folder.segments()
    for at, path in enumerate(segments):
        after = parse_segment_name(segments[at + 1].name) if at + 1 < len(segments) else None
        mended = _SegmentRepair(path, after).repair(folder.collector)
        next_seq, cut_bytes = max(next_seq, mended.next_seq), cut_bytes + mended.cut_bytes
        damages += mended.damages
    sync_folder(folder.path)
    return RecoveredSpool(next_seq, cut_bytes, tuple(damages))


class _SegmentRepair:
    """One segment; `after` is the first number of the next one, None of the newest."""

    def __init__(self, path: Path, next_first_seq: int | None) -> None:
        self._path = path
        self._next_first_seq = next_first_seq
        self._first_seq = parse_segment_name(path.name) or 0

    def repair(self, collector: bytes) -> RecoveredSpool:
        segment = Segment.open(self._path)
        frames, unreadable = self._read_frames(segment)
        good_end = frames[-1].end if frames else HEADER_BYTES
        size = self._path.stat().st_size
        if segment.header is None:
            if not frames and self._next_first_seq is None:
                self._path.unlink()  # its making was cut off: its name was not durable, and nothing in it promised
                return RecoveredSpool(self._first_seq, size, ())
            unreadable.insert(0, UnreadableBytes(0, HEADER_BYTES, "the segment's head is none", at_end=False))
        torn = unreadable and unreadable[-1].at_end and self._next_first_seq is None
        damages = self._find_damages(frames, unreadable[:-1] if torn else unreadable)
        last = max((frame.seq for frame in frames if frame.kind == FrameKind.EVENT), default=self._first_seq - 1)
        next_seq = last + 1 if self._next_first_seq is None else self._next_first_seq
        if damages:
            self._replace_damaged(frames, collector)
            return RecoveredSpool(next_seq, 0, tuple(damages))
        if not frames and self._next_first_seq is None:
            self._path.unlink()  # the next one has its number, and so its name
        elif good_end < size:
            _truncate(self._path, good_end)
        return RecoveredSpool(next_seq, size - good_end, ())

    def _read_frames(self, segment: Segment) -> tuple[list[Frame], list[UnreadableBytes]]:
        """Frames without their payloads in memory, and what lies between them."""
        frames, unreadable = [], []
        for item in segment.scan():
            if isinstance(item, UnreadableBytes):
                unreadable.append(item)
            elif self._next_first_seq is None or item.seq < self._next_first_seq:
                frames.append(Frame(item.seq, item.kind, item.source, b"", item.start, item.end))
            else:
                break  # written, never promised, and its number given to an event of the next segment
        return frames, unreadable

    def _find_damages(self, frames: list[Frame], unreadable: list[UnreadableBytes]) -> list[Damage]:
        """What is missing, as the numbers around it say; bytes between numbers that are all there were no events."""
        damages = []
        events = [frame for frame in frames if frame.kind == FrameKind.EVENT]
        for gap in unreadable:
            before = max((frame.seq for frame in events if frame.end <= gap.start), default=self._first_seq - 1)
            behind = min((frame.seq for frame in events if frame.start >= gap.end), default=self._next_first_seq)
            if gap.at_end and behind is not None and before + 1 >= behind:
                continue  # what a failed sync left behind the last promised event
            last = before if behind is None else behind - 1
            damages.append(Damage(self._path, gap.start, gap.end, gap.reason, before + 1, last))
        return damages

    def _replace_damaged(self, frames: list[Frame], collector: bytes) -> None:
        """Keep the damaged file beside one that holds its good frames; at every moment the segment's name has one."""
        damaged = self._path.with_name(self._path.name + DAMAGED_SUFFIX)
        repaired = self._path.with_name(self._path.name + _REPAIRED_SUFFIX)
        created_ms = int(self._path.stat().st_mtime * 1000)
        with self._path.open("rb") as source, repaired.open("wb") as target:
            target.write(SegmentHeader(collector, self._first_seq, created_ms).encode())
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


def _truncate(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _next_seq_from_progress(folder: Path) -> int:
    """The number behind the last one a sink has or has planned: segments that are done are gone."""
    file = folder / "progress.json"
    if not file.exists():
        return 1
    try:
        return _max_seq(orjson.loads(file.read_bytes())) + 1
    except orjson.JSONDecodeError as error:
        raise ContractError(
            "SPOOL_FOLDER_DAMAGED",
            f"{file} is no JSON, so that nobody can say how far sinks are.",
            hint="Put it back from a copy, or start with a new folder and leave this one to be drained.",
        ) from error


def _max_seq(value: Any) -> int:
    """The largest `done` or `last` at any depth."""
    if isinstance(value, list):
        return max(map(_max_seq, value), default=0)
    if not isinstance(value, dict):
        return 0
    own = [number for key in ("delivered_up_to", "last") if isinstance(number := value.get(key), int)]
    return max([*own, *map(_max_seq, value.values())], default=0)
