"""Scans one object for tokens by decoding its format: pages, dictionaries, footers, compressed text.

A plain byte search would miss tokens in compressed pages. Everything that a reader could decode is scanned: all values
of all columns, dictionaries with unused entries, footer bounds and decompressed text. Memory is bounded by a part of a
row group or a few megabytes of text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from deltaworks.erasure.table_files import parquet_batches
from deltaworks.erasure.token_search import TokenSearch
from deltaworks.privacy.envelope_encryption import TOKEN_LENGTH
from deltaworks.tables.lake import Lake, arrow_path

_CHUNK_BYTES: Final = 4 << 20
_PARQUET: Final = b"PAR1"
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MAGIC_LENGTH: Final = 4
_FOOTER_END: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedObject:
    """Result of scanning one object. If a part could be scanned as raw bytes only, `damaged` is the reason."""

    key: str
    bytes: int
    tokens: frozenset[str]
    damaged: str = ""


def scan_object(lake: Lake, key: str, search: TokenSearch) -> ScannedObject:
    """Scans the object at `key`; the format is detected by content. A missing object has no tokens."""
    return scan_path(lake.filesystem, arrow_path(lake.storage, key), search, key=key)


def scan_path(filesystem: fs.FileSystem, path: str, search: TokenSearch, *, key: str = "") -> ScannedObject:
    """Like `scan_object`, with a filesystem path."""
    tokens: set[str] = set()
    damaged, size = "", 0
    try:
        with filesystem.open_input_file(path) as source:
            size = source.size()
            try:
                for part in _scan_content(source, size, search):
                    tokens |= part
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, zlib.error, EOFError) as error:
                damaged = f"{type(error).__name__}: {error}"[:200]
                source.seek(0)
                for part in _scan_chunks(iter(lambda: source.read(_CHUNK_BYTES), b""), search):
                    tokens |= part
    except FileNotFoundError:
        return ScannedObject(key=key or path, bytes=0, tokens=frozenset())
    return ScannedObject(key=key or path, bytes=size, tokens=frozenset(tokens), damaged=damaged)


def _scan_content(source: Any, size: int, search: TokenSearch) -> Iterator[set[str]]:
    magic = source.read(_MAGIC_LENGTH)
    source.seek(0)
    if magic == _PARQUET:
        yield from _scan_parquet(source, size, search)
    elif magic[:2] == _GZIP:
        yield from _scan_chunks(_inflate(source), search)
    elif magic == _ZSTD:
        with pa.CompressedInputStream(source, "zstd") as plain:
            yield from _scan_chunks(iter(lambda: plain.read(_CHUNK_BYTES), b""), search)
    else:
        yield from _scan_chunks(iter(lambda: source.read(_CHUNK_BYTES), b""), search)


def _scan_parquet(source: Any, size: int, search: TokenSearch) -> Iterator[set[str]]:
    source.seek(max(0, size - _FOOTER_END))
    length = int.from_bytes(source.read(4), "little")
    source.seek(max(0, size - _FOOTER_END - length))
    yield search.tokens_in_bytes(source.read(length))
    source.seek(0)
    for batch in parquet_batches(source, dictionary_encoded=True):
        for column in batch.columns:
            yield search.tokens_in_column(column)


def _inflate(source: Any) -> Iterator[bytes]:
    """Yields the content of a gzip file, including multiple members.

    Raises:
        EOFError, zlib.error: it is truncated, or other data follows.
    """
    inflater, at_member_end = zlib.decompressobj(wbits=31), True
    while data := source.read(_CHUNK_BYTES):
        while data:
            at_member_end = False
            yield inflater.decompress(data, _CHUNK_BYTES)
            data = inflater.unconsumed_tail
            if inflater.eof:
                data, inflater, at_member_end = inflater.unused_data, zlib.decompressobj(wbits=31), True
    if not at_member_end:
        raise EOFError("its end is missing")


def _scan_chunks(chunks: Iterator[bytes], search: TokenSearch) -> Iterator[set[str]]:
    """Yields the tokens in chunks. The end of each chunk is scanned again with the next one, for tokens across the
    boundary.
    """
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        yield search.tokens_in_bytes(data)
        rest = data[-(TOKEN_LENGTH - 1) :]
