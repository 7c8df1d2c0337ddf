"""Inflates a block of an Avro container, up to a bound: a block can grow a thousandfold."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress

_CHECKSUM_BYTES = 4
#: The most that LZMA may take for itself, whatever the content says.
_MAX_LZMA_BYTES = 128 << 20

Codec = Callable[[bytes, int], bytes]


def _inflate_null(content: bytes, most: int) -> bytes:
    return _check_size(content, most)


def _inflate_deflate(content: bytes, most: int) -> bytes:
    inflating = zlib.decompressobj(-15)
    inflated = _check_size(inflating.decompress(content, most + 1), most)
    if not inflating.eof:
        raise DamagedContent("it ends before its end-of-stream mark")
    return inflated


def _inflate_bzip2(content: bytes, most: int) -> bytes:
    return decompress(content, "bzip2", max_bytes=most)


def _inflate_zstandard(content: bytes, most: int) -> bytes:
    return decompress(content, "zstd", max_bytes=most)


def _inflate_xz(content: bytes, most: int) -> bytes:
    inflating = lzma.LZMADecompressor(memlimit=_MAX_LZMA_BYTES)
    inflated = _check_size(inflating.decompress(content, most + 1), most)
    if not inflating.eof:
        raise DamagedContent("it ends before its end-of-stream mark")
    return inflated


def _inflate_snappy(content: bytes, most: int) -> bytes:
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


def _check_size(inflated: bytes, max_bytes: int) -> bytes:
    if len(inflated) > max_bytes:
        raise ContentTooLarge(f"holds {len(inflated)} bytes or more; at most {max_bytes} are read")
    return inflated


#: What inflates the content of a block to at most so many bytes, by the codec that the container names.
CODECS: Mapping[str, Codec] = {
    "null": _inflate_null,
    "deflate": _inflate_deflate,
    "bzip2": _inflate_bzip2,
    "xz": _inflate_xz,
    "zstandard": _inflate_zstandard,
    "snappy": _inflate_snappy,
}
