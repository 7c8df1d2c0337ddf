"""Inflates blocks of an Avro container up to a size limit, because a block can expand a thousandfold."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress

_CHECKSUM_BYTES = 4
#: Memory limit for LZMA.
_MAX_LZMA_BYTES = 128 << 20

Codec = Callable[[bytes, int], bytes]


def _inflate_null(content: bytes, max_bytes: int) -> bytes:
    return _check_size(content, max_bytes)


def _inflate_deflate(content: bytes, max_bytes: int) -> bytes:
    inflating = zlib.decompressobj(-15)
    inflated = _check_size(inflating.decompress(content, max_bytes + 1), max_bytes)
    if not inflating.eof:
        raise DamagedContent("the end-of-stream marker is missing")
    return inflated


def _inflate_bzip2(content: bytes, max_bytes: int) -> bytes:
    return decompress(content, "bzip2", max_bytes=max_bytes)


def _inflate_zstandard(content: bytes, max_bytes: int) -> bytes:
    return decompress(content, "zstd", max_bytes=max_bytes)


def _inflate_xz(content: bytes, max_bytes: int) -> bytes:
    inflating = lzma.LZMADecompressor(memlimit=_MAX_LZMA_BYTES)
    inflated = _check_size(inflating.decompress(content, max_bytes + 1), max_bytes)
    if not inflating.eof:
        raise DamagedContent("the end-of-stream marker is missing")
    return inflated


def _inflate_snappy(content: bytes, max_bytes: int) -> bytes:
    body, size = content[:-_CHECKSUM_BYTES], 0
    for index, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > max_bytes:
        raise ContentTooLarge(f"has {size} bytes; at most {max_bytes} are allowed")
    inflated = bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    if zlib.crc32(inflated) != int.from_bytes(content[-_CHECKSUM_BYTES:]):
        raise DamagedContent("its checksum does not match")
    return inflated


def _check_size(inflated: bytes, max_bytes: int) -> bytes:
    if len(inflated) > max_bytes:
        raise ContentTooLarge(f"has {len(inflated)} bytes or more; at most {max_bytes} are allowed")
    return inflated


#: Functions by codec name that inflate a block to at most the given size.
CODECS: Mapping[str, Codec] = {
    "null": _inflate_null,
    "deflate": _inflate_deflate,
    "bzip2": _inflate_bzip2,
    "xz": _inflate_xz,
    "zstandard": _inflate_zstandard,
    "snappy": _inflate_snappy,
}
