"""The file format of the spool: segments of frames, each frame with its own checksum.

```
segment = "DWSP" u16 version u16 flags | 16 B collector | u64 first_seq | u64 created_ms | u32 crc32(all before)
frame   = u32 length of rest | u32 crc32(rest) | rest = u64 seq | u8 kind | u8 source | u16 0 | payload
```

All numbers are little-endian. Events of a collector are numbered without gaps, across all its segments. Frames of other
kinds carry the number of the next event.

An event's payload is JSON text without zero bytes, while every frame header has some. So after damage a reader cannot
confuse client data with a frame.
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
#: Bytes of a frame in addition to its payload.
FRAME_BYTES: Final = _LENGTH_CRC.size + _REST.size
#: Maximum payload. A body has at most 4 MiB, and becomes six times as long if every byte is escaped.
MAX_PAYLOAD_BYTES: Final = 256 << 20
_SEGMENT_NAME = re.compile(r"^seg-(\d{20})\.wal$")
_READ_BYTES = 1 << 20


class FrameKind(IntEnum):
    """The kind of a frame."""

    DATA_KEY = 0
    EVENT = 1
    IDENTITIES = 2
    UNREADABLE = 3


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment: collector id, first event number, creation time."""

    collector_id: bytes
    first_seq: int
    created_ms: int

    def encode(self) -> bytes:
        """Serializes the header to `HEADER_BYTES` bytes."""
        fixed = _FIXED.pack(MAGIC, VERSION, 0, self.collector_id, self.first_seq, self.created_ms)
        return fixed + _CRC.pack(zlib.crc32(fixed))

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader | None:
        """Parses a header; returns None if the bytes are invalid or of another version."""
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
    """A frame with its byte range in the segment: from `start` to before `end`."""

    seq: int
    kind: int
    source: int
    payload: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnreadableBytes:
    """Bytes from `start` to before `end` that are not a frame, and why.

    `at_end`: no valid frame follows. In the last segment this is an interrupted, unacknowledged group; in an older one
        it is damage.
    """

    start: int
    end: int
    reason: str
    at_end: bool


def encode_frame(seq: int, kind: int, source: int, payload: bytes) -> bytes:
    """Serializes a frame. `source` is the source's number in the spool folder."""
    content = _REST.pack(seq, kind, source, 0)
    crc = zlib.crc32(payload, zlib.crc32(content))
    return _LENGTH_CRC.pack(len(content) + len(payload), crc) + content + payload


def segment_name(first_seq: int) -> str:
    """Returns the file name of the segment that begins with event `first_seq`; names sort like their events."""
    return f"seg-{first_seq:020d}.wal"


def parse_segment_name(name: str) -> int | None:
    """Returns the number in a segment's file name; None for other names."""
    match = _SEGMENT_NAME.match(name)
    return int(match[1]) if match else None


class Segment:
    """A segment for reading. Safe for concurrent readers, also while the writer appends after `end`."""

    def __init__(self, path: Path, header: SegmentHeader | None) -> None:
        self.path = path
        self.header = header

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Opens a segment; its header is None if it cannot be read.

        Raises:
            ContractError: SPOOL_SEGMENT_UNKNOWN, a complete segment of an unsupported version.
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
                )
        return cls(path, header)

    def scan(self, *, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[Frame | UnreadableBytes]:
        """Yields every frame in order, and every unreadable byte range.

        Memory is bounded by the longest frame, except after damage, where the rest is read in one piece.

        Args:
            start: where to begin: `HEADER_BYTES`, or the `end` of a frame.
            end: durable offset at which to stop; the end of the file by default.
        """
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield from _scan(_ReadAhead(file.fileno(), size if end is None else min(end, size)), start)

    def frames(self, *, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[Frame]:
        """Yields all readable frames, in order."""
        return (item for item in self.scan(start=start, end=end) if isinstance(item, Frame))


class _ReadAhead:
    """Reads bytes of a file, a mebibyte ahead."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._data_offset = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """Returns the bytes at an offset; fewer at the end of the file."""
        length = min(length, self.size - offset)
        if offset < self._data_offset or offset + length > self._data_offset + len(self._data):
            self._data, self._data_offset = _pread(self._descriptor, max(length, _READ_BYTES), offset), offset
        at = offset - self._data_offset
        return self._data[at : at + length]


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    chunks, read_bytes = [], 0
    while read_bytes < length and (chunk := os.pread(descriptor, length - read_bytes, offset + read_bytes)):
        chunks.append(chunk)
        read_bytes += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _scan(window: _ReadAhead, offset: int) -> Iterator[Frame | UnreadableBytes]:
    seq = 0
    while offset < window.size:
        item = _frame_at(window, offset, seq)
        if isinstance(item, str):
            next_start = _find_next_frame(window, offset + 1, seq)
            end = window.size if next_start is None else next_start
            yield UnreadableBytes(offset, end, item, at_end=next_start is None)
            offset = end
            continue
        yield item
        seq, offset = item.seq, item.end


def _frame_at(window: _ReadAhead, offset: int, min_seq: int) -> Frame | str:
    """Returns the frame at an offset, or the reason why there is none."""
    header = window.read(offset, FRAME_BYTES)
    if len(header) < FRAME_BYTES:
        return "the frame header is truncated"
    length, crc = _LENGTH_CRC.unpack_from(header)
    seq, kind, source, reserved = _REST.unpack_from(header, _LENGTH_CRC.size)
    if not _REST.size <= length <= _REST.size + MAX_PAYLOAD_BYTES or reserved or kind > max(FrameKind) or seq < min_seq:
        return "the frame header is invalid"
    content = window.read(offset + _LENGTH_CRC.size, length)
    if len(content) < length:
        return "the frame is truncated"
    if zlib.crc32(content) != crc:
        return "the frame's checksum does not match"
    return Frame(seq, kind, source, content[_REST.size :], offset, offset + _LENGTH_CRC.size + length)


def _find_next_frame(window: _ReadAhead, offset: int, min_seq: int) -> int | None:
    """Returns the start of the next valid frame. Impossible headers are skipped without a checksum."""
    region = _ReadAhead(-1, window.size)
    region._data_offset, region._data = offset, window.read(offset, window.size - offset)
    zeros = region._data.find(b"\0\0", FRAME_BYTES - 2)
    while zeros >= 0:
        start = offset + zeros - (FRAME_BYTES - 2)
        if isinstance(_frame_at(region, start, min_seq), Frame):
            return start
        zeros = region._data.find(b"\0\0", zeros + 1)
    return None
