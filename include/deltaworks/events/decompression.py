"""Decompresses what an object or a record holds: gzip, bzip2 and zstd, by how it begins or as it is declared."""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa
from isal import isal_zlib

from deltaworks.specs.sources.payload import Compression

#: How each begins. A text can begin with bzip2's letters: a block, or the end of an empty content, has to follow.
_MAGIC_PATTERNS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
}
#: How much is inflated at a time: a small content can grow a thousandfold.
_PIECE_BYTES = 8 << 20
#: What readers raise of damage. The last one's stubs call it an instance of what it is a class of.
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    EOFError,
    OSError,
    ValueError,
    cast("type[Exception]", isal_zlib.IsalError),
)


class DamagedContent(Exception):
    """It is cut off or damaged, or not compressed as declared."""


class ContentTooLarge(Exception):
    """Decompressed, it is larger than may be read."""


def decompress(data: bytes, compression: Compression, *, max_bytes: int | None) -> bytes:
    """The content, every member or frame of it. No more than `max_bytes` and one piece of it is ever held.

    Args:
        compression: `auto` decompresses what begins as one of the three does; a name insists; `none` leaves it.

    Raises:
        DamagedContent, LargeContent: with what there is to say, but for its name.
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
                raise ContentTooLarge(f"holds {size} bytes or more; at most {max_bytes} are read")
            parts.append(part)
    except _DAMAGE_ERRORS as error:
        raise DamagedContent(f"its {kind} content is damaged: {str(error).rstrip('.')}") from error
    return b"".join(parts)


def detect_compression(data: bytes) -> str:
    """How content that begins so is compressed: `gzip`, `bzip2`, `zstd` or `none`."""
    return next((kind for kind, beginning in _MAGIC_PATTERNS.items() if beginning.match(data)), "none")


def _gzip(data: bytes) -> Iterator[bytes]:
    rest = data
    while rest or not data:  # an empty content is as damaged as a cut one
        inflating = isal_zlib.decompressobj(wbits=31)
        while not inflating.eof:
            part = inflating.decompress(rest, _PIECE_BYTES)
            rest = inflating.unconsumed_tail
            if not part and not rest and not inflating.eof:
                raise EOFError("it ends before its end-of-stream mark")
            yield part
        # Padding behind the last member is part of the format.
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
                raise EOFError("it ends before its end-of-stream mark")
            yield part
        rest = inflating.unused_data


def _zstd(data: bytes) -> Iterator[bytes]:
    if not data:
        raise EOFError("it is empty")
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(_PIECE_BYTES):
            yield part


_DECOMPRESSORS: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "bzip2": _bzip2, "zstd": _zstd}
