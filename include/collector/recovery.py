"""Recovers a spool after its process ended: truncates unacknowledged writes, repairs damage, and continues the
numbering.

A crash may leave the last group of writes incomplete. It was not acknowledged, so it is truncated. Any other unreadable
content is damage: readable events around it are kept, and the original file is renamed to `.damaged`.
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
    """Unreadable bytes of a segment, and the event numbers they contained."""

    path: Path
    start: int
    end: int
    reason: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class RecoveredSpool:
    """A recovered folder: the next event number, truncated bytes, and damages."""

    next_seq: int
    cut_bytes: int
    damages: tuple[Damage, ...]


def recover(folder: SpoolFolder) -> RecoveredSpool:
    """Recovers a folder for writing and draining. Idempotent, also after a crash during recovery.

    No other process or thread may use the folder meanwhile.

    Raises:
        ContractError: SPOOL_SEGMENT_UNKNOWN, a segment has another version; SPOOL_FOLDER_DAMAGED, the progress cannot
            be read.
    """
    next_seq, cut_bytes = _next_seq_from_progress(folder.path), 0
    damages: list[Damage] = []
    segments = folder.segments()
    for index, path in enumerate(segments):
        next_first_seq = parse_segment_name(segments[index + 1].name) if index + 1 < len(segments) else None
        repaired = _SegmentRepair(path, next_first_seq).repair(folder.collector)
        next_seq, cut_bytes = max(next_seq, repaired.next_seq), cut_bytes + repaired.cut_bytes
        damages += repaired.damages
    sync_folder(folder.path)
    return RecoveredSpool(next_seq, cut_bytes, tuple(damages))


class _SegmentRepair:
    """Repairs one segment; `next_first_seq` is the first number of the next segment, None for the last."""

    def __init__(self, path: Path, next_first_seq: int | None) -> None:
        self._path = path
        self._next_first_seq = next_first_seq
        self._first_seq = parse_segment_name(path.name) or 0

    def repair(self, collector: bytes) -> RecoveredSpool:
        segment = Segment.open(self._path)
        frames, unreadable = self._read_frames(segment)
        valid_end = frames[-1].end if frames else HEADER_BYTES
        size = self._path.stat().st_size
        if segment.header is None:
            if not frames and self._next_first_seq is None:
                self._path.unlink()  # its creation was interrupted, so nothing was acknowledged
                return RecoveredSpool(self._first_seq, size, ())
            unreadable.insert(0, UnreadableBytes(0, HEADER_BYTES, "the segment header is invalid", at_end=False))
        is_torn = unreadable and unreadable[-1].at_end and self._next_first_seq is None
        damages = self._find_damages(frames, unreadable[:-1] if is_torn else unreadable)
        last = max((frame.seq for frame in frames if frame.kind == FrameKind.EVENT), default=self._first_seq - 1)
        next_seq = last + 1 if self._next_first_seq is None else self._next_first_seq
        if damages:
            self._replace_damaged(frames, collector)
            return RecoveredSpool(next_seq, 0, tuple(damages))
        if not frames and self._next_first_seq is None:
            self._path.unlink()  # the next segment gets its number and name
        elif valid_end < size:
            _truncate(self._path, valid_end)
        return RecoveredSpool(next_seq, size - valid_end, ())

    def _read_frames(self, segment: Segment) -> tuple[list[Frame], list[UnreadableBytes]]:
        """Returns the valid frames without payloads, and the unreadable byte ranges between them."""
        frames, unreadable = [], []
        for item in segment.scan():
            if isinstance(item, UnreadableBytes):
                unreadable.append(item)
            elif self._next_first_seq is None or item.seq < self._next_first_seq:
                frames.append(Frame(item.seq, item.kind, item.source, b"", item.start, item.end))
            else:
                break  # unacknowledged; its number belongs to an event of the next segment
        return frames, unreadable

    def _find_damages(self, frames: list[Frame], unreadable: list[UnreadableBytes]) -> list[Damage]:
        """Returns the damages with the event numbers that they contained.

        Unreadable bytes at the end of a segment are no damage if no number is missing.
        """
        damages = []
        events = [frame for frame in frames if frame.kind == FrameKind.EVENT]
        for gap in unreadable:
            seq_before = max((frame.seq for frame in events if frame.end <= gap.start), default=self._first_seq - 1)
            seq_after = min((frame.seq for frame in events if frame.start >= gap.end), default=self._next_first_seq)
            if gap.at_end and seq_after is not None and seq_before + 1 >= seq_after:
                continue  # left by a failed sync after the last acknowledged event
            last = seq_before if seq_after is None else seq_after - 1
            damages.append(Damage(self._path, gap.start, gap.end, gap.reason, seq_before + 1, last))
        return damages

    def _replace_damaged(self, frames: list[Frame], collector: bytes) -> None:
        """Replaces the damaged file by one with its valid frames, and keeps the original.

        The segment's name refers to a complete file at any time, also after a crash.
        """
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
    """Returns the number after the last delivered or planned event; the events themselves may be deleted already."""
    file = folder / "progress.json"
    if not file.exists():
        return 1
    try:
        return _max_seq(orjson.loads(file.read_bytes())) + 1
    except orjson.JSONDecodeError as error:
        raise ContractError(
            "SPOOL_FOLDER_DAMAGED", f"{file} is not valid JSON, so the delivery progress is unknown."
        ) from error


def _max_seq(value: Any) -> int:
    """Returns the largest event number anywhere in nested progress data."""
    if isinstance(value, list):
        return max(map(_max_seq, value), default=0)
    if not isinstance(value, dict):
        return 0
    own_seqs = [number for key in ("delivered_up_to", "last") if isinstance(number := value.get(key), int)]
    return max([*own_seqs, *map(_max_seq, value.values())], default=0)
