"""Inflates a block of an Avro container, up to a bound: a block can grow a thousandfold."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress

_CHECKSUM_BYTES = 4
#: The most that LZMA may take for itself, whatever the content says.
_LZMA_BYTES = 128 << 20

Codec = Callable[[bytes, int], bytes]


def _null(content: bytes, most: int) -> bytes:
    return _within(content, most)


def _deflate(content: bytes, most: int) -> bytes:
    inflating = zlib.decompressobj(-15)
    inflated = _within(inflating.decompress(content, most + 1), most)
    if not inflating.eof:
        raise DamagedContent("it ends before its end-of-stream mark")
    return inflated


def _bzip2(content: bytes, most: int) -> bytes:
    return decompress(content, "bzip2", max_bytes=most)


def _zstandard(content: bytes, most: int) -> bytes:
    return decompress(content, "zstd", max_bytes=most)


def _xz(content: bytes, most: int) -> bytes:
    inflating = lzma.LZMADecompressor(memlimit=_LZMA_BYTES)
    inflated = _within(inflating.decompress(content, most + 1), most)
    if not inflating.eof:
        raise DamagedContent("it ends before its end-of-stream mark")
    return inflated


def _snappy(content: bytes, most: int) -> bytes:
    body, size = content[:-_CHECKSUM_BYTES], 0
    for index, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > most:
        raise ContentTooLarge(f"holds {size} bytes; at most {most} are read")
    inflated = bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    if zlib.crc32(inflated) != int.from_bytes(content[-_CHECKSUM_BYTES:]):
        raise DamagedContent("its checksum is another")
    return inflated


def _within(inflated: bytes, most: int) -> bytes:
    if len(inflated) > most:
        raise ContentTooLarge(f"holds {len(inflated)} bytes or more; at most {most} are read")
    return inflated


#: What inflates the content of a block to at most so many bytes, by the codec that the container names.
CODECS: Mapping[str, Codec] = {
    "null": _null,
    "deflate": _deflate,
    "bzip2": _bzip2,
    "xz": _xz,
    "zstandard": _zstandard,
    "snappy": _snappy,
}
