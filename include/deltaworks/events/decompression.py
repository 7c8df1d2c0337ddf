"""Decompresses objects and records: gzip, bzip2 and zstd, detected by their magic bytes or as declared."""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa
from isal import isal_zlib

from deltaworks.specs.sources.records import Compression

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
    memory.

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
    rest = data
    while rest or not data:  # empty content is as invalid as truncated content
        inflating = isal_zlib.decompressobj(wbits=31)
        while not inflating.eof:
            part = inflating.decompress(rest, _PIECE_BYTES)
            rest = inflating.unconsumed_tail
            if not part and not rest and not inflating.eof:
                raise EOFError("the end-of-stream marker is missing")
            yield part
        # The format allows padding after the last member.
        rest = inflating.unused_data.lstrip(b"\0")


def _bzip2(data: bytes) -> Iterator[bytes]:
    rest = data
    while rest or not data:
        inflating = bz2.BZ2Decompressor()
        compressed = rest
        while not inflating.eof:
            part = inflating.decompress(compressed, _PIECE_BYTES)
            compressed = b""
            if not part and inflating.needs_input and not inflating.eof:
                raise EOFError("the end-of-stream marker is missing")
            yield part
        rest = inflating.unused_data


def _zstd(data: bytes) -> Iterator[bytes]:
    if not data:
        raise EOFError("it is empty")
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(_PIECE_BYTES):
            yield part


_DECOMPRESSORS: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "bzip2": _bzip2, "zstd": _zstd}
