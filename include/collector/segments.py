"""The format of the spool's files: segments of framed events, each frame with its own checksum.

```
segment = "DWSP" u16 version u16 flags | 16 B collector | u64 first_seq | u64 created_ms | u32 crc32(all before)
frame   = u32 length of rest | u32 crc32(rest) | rest = u64 seq | u8 kind | u8 source | u16 0 | payload
```

All numbers are little-endian. Events of a collector are numbered without gaps, over all its segments. Frames of other
kinds carry the number of the event behind them and take none of their own.

The payload of an event is JSON text and so holds no zero byte, which every frame's head does: behind damage a reader
cannot take what a client has sent for a frame.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from deltaworks.errors import ContractError

MAGIC: Final = b"DWSP"
VERSION: Final = 1
_FIXED = struct.Struct("<4sHH16sQQ")
_CRC = struct.Struct("<I")
_LENGTH_CRC = struct.Struct("<II")
_REST = struct.Struct("<QBBH")
HEADER_BYTES: Final = _FIXED.size + _CRC.size
#: What a frame takes beside its payload.
FRAME_BYTES: Final = _LENGTH_CRC.size + _REST.size
#: A longer payload is none: a body is at most 4 MiB, and becomes six times as long where every byte is escaped.
MAX_PAYLOAD_BYTES: Final = 256 << 20
_SEGMENT_NAME = re.compile(r"^seg-(\d{20})\.wal$")
_READ_BYTES = 1 << 20


class FrameKind(IntEnum):
    """What a frame holds."""

    DATA_KEY = 0
    EVENT = 1
    IDENTITIES = 2
    UNREADABLE = 3


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first bytes of a segment: the collector's id, the number of its first event, when it was made."""

    collector_id: bytes
    first_seq: int
    created_ms: int

    def encode(self) -> bytes:
        """The `HEADER_BYTES` bytes on disk."""
        fixed = _FIXED.pack(MAGIC, VERSION, 0, self.collector_id, self.first_seq, self.created_ms)
        return fixed + _CRC.pack(zlib.crc32(fixed))

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader | None:
        """The header of a segment; None where the bytes are none, or those of another version."""
        if len(data) < HEADER_BYTES:
            return None
        magic, version, _, collector, first_seq, created_ms = _FIXED.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION) or _CRC.unpack_from(data, _FIXED.size)[0] != zlib.crc32(
            data[: _FIXED.size]
        ):
            return None
        return cls(collector, first_seq, created_ms)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, and where it lies in its segment: from byte `start` to before byte `end`."""

    seq: int
    kind: int
    source: int
    payload: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnreadableBytes:
    """Bytes from `start` to before `end` that are no frame, and why.

    `at_end`: no good frame is behind them. Of the newest segment that is a group whose write was cut off, which nobody
    was promised; of an older one it is damage, as anything is that good frames follow.
    """

    start: int
    end: int
    reason: str
    at_end: bool


def encode_frame(seq: int, kind: int, source: int, payload: bytes) -> bytes:
    """The bytes of a frame. `source` is the number of the source in the spool's folder."""
    rest = _REST.pack(seq, kind, source, 0)
    crc = zlib.crc32(payload, zlib.crc32(rest))
    return _LENGTH_CRC.pack(len(rest) + len(payload), crc) + rest + payload


def segment_name(first_seq: int) -> str:
    """The file name of the segment that begins with event `first_seq`; names sort as their events do."""
    return f"seg-{first_seq:020d}.wal"


def parse_segment_name(name: str) -> int | None:
    """The number in a segment's file name; None for any other name."""
    match = _SEGMENT_NAME.match(name)
    return int(match[1]) if match else None


class Segment:
    """A segment on disk, for reading. Several may read one; one may read while the writer appends behind `end`."""

    def __init__(self, path: Path, header: SegmentHeader | None) -> None:
        self.path = path
        self.header = header

    @classmethod
    def open(cls, path: Path) -> Segment:
        """A segment, with its header; None as its header where that cannot be read.

        Raises:
            ContractError: SPOOL_SEGMENT_UNKNOWN where the file is a whole segment of a version this one cannot read.
        """
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
        header = SegmentHeader.decode(data)
        if header is None and len(data) == HEADER_BYTES and data[:4] == MAGIC:
            version = int.from_bytes(data[4:6], "little")
            crc_fits = _CRC.unpack_from(data, _FIXED.size)[0] == zlib.crc32(data[: _FIXED.size])
            if crc_fits and version != VERSION:
                raise ContractError(
                    "SPOOL_SEGMENT_UNKNOWN",
                    f"{path} is a segment of version {version}; this collector reads version {VERSION}.",
                    hint="Let the release that wrote it drain the folder, or run that release or a later one.",
                )
        return cls(path, header)

    def scan(self, *, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[Frame | UnreadableBytes]:
        """Every frame in order, and every stretch of bytes that is none.

        Memory is bounded by the longest frame, but for damage, behind which the rest is read at once.

        Args:
            start: where to begin: `HEADER_BYTES`, or the `end` of a frame.
            end: where to stop: an offset up to which all is durable; the end of the file by default.
        """
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield from _scan(_ReadAhead(file.fileno(), size if end is None else min(end, size)), start)

    def frames(self, *, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[Frame]:
        """Every frame that can be read, in order; what cannot is passed over."""
        return (item for item in self.scan(start=start, end=end) if isinstance(item, Frame))


class _ReadAhead:
    """Bytes of a file, a mebibyte ahead."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._data_offset = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at an offset; fewer at the end of the file."""
        length = min(length, self.size - offset)
        if offset < self._data_offset or offset + length > self._data_offset + len(self._data):
            self._data, self._data_offset = _pread(self._descriptor, max(length, _READ_BYTES), offset), offset
        at = offset - self._data_offset
        return self._data[at : at + length]


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    pieces, got = [], 0
    while got < length and (piece := os.pread(descriptor, length - got, offset + got)):
        pieces.append(piece)
        got += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _scan(window: _ReadAhead, offset: int) -> Iterator[Frame | UnreadableBytes]:
    seq = 0
    while offset < window.size:
        item = _frame_at(window, offset, seq)
        if isinstance(item, str):
            behind = _find_next_frame(window, offset + 1, seq)
            end = window.size if behind is None else behind
            yield UnreadableBytes(offset, end, item, at_end=behind is None)
            offset = end
            continue
        yield item
        seq, offset = item.seq, item.end


def _frame_at(window: _ReadAhead, offset: int, min_seq: int) -> Frame | str:
    """The frame at an offset, or why there is none."""
    head = window.read(offset, FRAME_BYTES)
    if len(head) < FRAME_BYTES:
        return "a frame's head is cut off"
    length, crc = _LENGTH_CRC.unpack_from(head)
    seq, kind, source, zero = _REST.unpack_from(head, _LENGTH_CRC.size)
    if not _REST.size <= length <= _REST.size + MAX_PAYLOAD_BYTES or zero or kind > max(FrameKind) or seq < min_seq:
        return "a frame's head is none"
    rest = window.read(offset + _LENGTH_CRC.size, length)
    if len(rest) < length:
        return "a frame is cut off"
    if zlib.crc32(rest) != crc:
        return "a frame's checksum does not fit"
    return Frame(seq, kind, source, rest[_REST.size :], offset, offset + _LENGTH_CRC.size + length)


def _find_next_frame(window: _ReadAhead, offset: int, min_seq: int) -> int | None:
    """Where the next good frame begins. Frames whose head cannot be one cost no checksum."""
    rest = _ReadAhead(-1, window.size)
    rest._data_offset, rest._data = offset, window.read(offset, window.size - offset)
    zero = rest._data.find(b"\0\0", FRAME_BYTES - 2)
    while zero >= 0:
        start = offset + zero - (FRAME_BYTES - 2)
        if isinstance(_frame_at(rest, start, min_seq), Frame):
            return start
        zero = rest._data.find(b"\0\0", zero + 1)
    return None
