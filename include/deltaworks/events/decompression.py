"""Decompresses objects and records: gzip, bzip2 and zstd, detected by their magic bytes or as declared."""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa
from isal import isal_zlib

from deltaworks.specs.record_sources import Compression

#: Texts may begin with bzip2's magic letters, so the header of a block or of an empty stream's end must follow.
_MAGIC_PATTERNS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
}
#: A frame that zstd ignores, such as a table of contents, and that may be first: its magic bytes and size.
_SKIPPABLE_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(.{4})", re.DOTALL)
#: Output bytes per step. Bounded because input can expand a thousandfold.
_PIECE_BYTES = 8 << 20
#: Input bytes per step. A decoder copies the input after a member's end, so a short member must cost a few bytes.
_FIRST_WINDOW_BYTES, _WINDOW_BYTES = 512, 64 << 10
#: Members of an object. Senders that compress each record write thousands.
MAX_MEMBERS = 200_000
_PADDING = re.compile(rb"\0*")
#: Errors that decoders raise for corrupt data. isal's stubs declare IsalError as an instance.
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    EOFError,
    OSError,
    ValueError,
    cast("type[Exception]", isal_zlib.IsalError),
)


class DamagedContent(Exception):
    """Raised if content is truncated, corrupt, or not compressed as declared."""


class ContentTooLarge(Exception):
    """Raised if decompressed content exceeds the limit."""


def decompress(data: bytes, compression: Compression, *, max_bytes: int | None) -> bytes:
    """Decompresses content with any number of gzip members or zstd frames. Needs at most `max_bytes` plus one step of
    memory, and time linear in the size of the data and its content.

    Args:
        compression: `auto` detects the format; a format's name requires it; `none` returns the data unchanged.

    Raises:
        DamagedContent, ContentTooLarge: the message does not contain the object's name.
    """
    kind = detect_compression(data) if compression == "auto" else compression
    if kind == "none":
        return data
    parts: list[bytes] = []
    size = 0
    try:
        for part in _DECOMPRESSORS[kind](data):
            size += len(part)
            if max_bytes is not None and size > max_bytes:
                raise ContentTooLarge(f"has {size} bytes or more; at most {max_bytes} are allowed")
            parts.append(part)
    except _DAMAGE_ERRORS as error:
        raise DamagedContent(f"its {kind} content is corrupt: {str(error).rstrip('.')}") from error
    return b"".join(parts)


def detect_compression(data: bytes) -> str:
    """Returns `gzip`, `bzip2`, `zstd` or `none` by the first bytes."""
    start = 0
    while frame := _SKIPPABLE_FRAME.match(data, start):
        start = frame.end() + int.from_bytes(frame[1], "little")
        if _MAGIC_PATTERNS["zstd"].match(data, start):
            return "zstd"
    return next((kind for kind, beginning in _MAGIC_PATTERNS.items() if beginning.match(data)), "none")


def _gzip(data: bytes) -> Iterator[bytes]:
    view, start, members = memoryview(data), 0, 0
    while start < len(data) or not data:  # empty content is as invalid as truncated content
        members += 1
        _check_members(members, "gzip")
        inflating = isal_zlib.decompressobj(wbits=31)
        rest, window = b"", _FIRST_WINDOW_BYTES
        while not inflating.eof:
            piece = rest or view[start : start + window]
            if not rest:
                start, window = start + len(piece), min(_WINDOW_BYTES, 4 * window)
            part = inflating.decompress(piece, _PIECE_BYTES)
            rest = inflating.unconsumed_tail
            if part:
                yield part
            elif not rest and not len(piece) and not inflating.eof:
                raise EOFError("the end-of-stream marker is missing")
        # The format allows padding after the last member.
        start = _PADDING.match(data, start - len(inflating.unused_data)).end()  # type: ignore[union-attr]


def _bzip2(data: bytes) -> Iterator[bytes]:
    view, start, members = memoryview(data), 0, 0
    while start < len(data) or not data:
        members += 1
        _check_members(members, "bzip2")
        inflating, window = bz2.BZ2Decompressor(), _FIRST_WINDOW_BYTES
        while not inflating.eof:
            piece = view[start : start + window] if inflating.needs_input else view[:0]
            start, window = start + len(piece), min(_WINDOW_BYTES, 4 * window)
            part = inflating.decompress(piece, _PIECE_BYTES)
            if part:
                yield part
            elif inflating.needs_input and start >= len(data) and not inflating.eof:
                raise EOFError("the end-of-stream marker is missing")
        start -= len(inflating.unused_data)


def _check_members(members: int, kind: str) -> None:
    if members > MAX_MEMBERS:
        raise ContentTooLarge(f"has more than {MAX_MEMBERS} {kind} members")


def _zstd(data: bytes) -> Iterator[bytes]:
    if not data:
        raise EOFError("it is empty")
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(_PIECE_BYTES):
            yield part


_DECOMPRESSORS: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "bzip2": _bzip2, "zstd": _zstd}
