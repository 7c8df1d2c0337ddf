"""Slow, simple readers of Parquet objects and of compressed content, without product code.

Damaged files leave a range: an unreadable row group holds at least one event, and at most one more than it declares.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.fuzz.plain_readers import BROKEN, NOTHING, Reading, exactly

#: Depth up to which nested columns have to be read (docs/reference/formats.md).
_MOST_LEVELS = 64
#: Limit of rows read individually; a larger object exceeds the product's budgets too.
MOST_READ = 20_000


def parquet_rows(payload: bytes) -> Reading:
    """Reads a Parquet file row group by row group and row by row."""
    if not payload.startswith(b"PAR1"):
        return NOTHING
    try:
        file = pq.ParquetFile(pa.BufferReader(payload), page_checksum_verification=True)
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    except Exception:  # a damaged footer makes the file unreadable
        return NOTHING
    events: list[Any] = []
    least, most, broken = 0, 0.0, 0
    for number, rows in enumerate(sizes):
        table = _group(file, number) if rows <= MOST_READ else None
        if table is None:
            broken += 1
            least += 1
            most += max(rows, 0) + 1
        else:
            events += [] if broken else [_row(table, index) for index in range(table.num_rows)]
            least += table.num_rows
            most += table.num_rows
    if broken or _levels(file) > _MOST_LEVELS:
        return Reading(events, least, most, whole=True, broken=broken)
    return exactly(events)


def _levels(file: pq.ParquetFile) -> int:
    schema = file.metadata.schema
    return max((schema.column(number).path.count(".") for number in range(file.metadata.num_columns)), default=0)


def _group(file: pq.ParquetFile, number: int) -> pa.Table | None:
    try:
        return file.read_row_group(number)
    except Exception:  # its pages contradict the footer
        return None


def _row(table: pa.Table, index: int) -> Any:
    row = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            row[name] = column[index].as_py()
        except Exception:  # a value that Python cannot represent
            return BROKEN
    return row


def content_of(data: bytes, *, most: int) -> bytes | None:
    """Decompresses content; None if it is damaged, or larger than `most` bytes."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return _bounded(gzip.GzipFile(fileobj=io.BytesIO(data)), most)
        # The magic bytes alone are plain text: a block or the end marker must follow.
        if re.match(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", data):
            return _members(data, most)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return _frames(data, most)
    except (EOFError, OSError, ValueError, zlib.error, zstandard.ZstdError):
        return None
    return data


def _members(data: bytes, most: int) -> bytes | None:
    """Decompresses all members; a file reader would ignore bytes after the last one."""
    content = b""
    while data:
        member = bz2.BZ2Decompressor()
        content += member.decompress(data)
        if not member.eof or len(content) > most:
            return None
        data = member.unused_data
    return content


def _frames(data: bytes, most: int) -> bytes | None:
    """Decompresses all frames; a stream reader would take a truncated frame for the end."""
    content = b""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        content += frame.decompress(data)
        if not frame.eof or len(content) > most:
            return None
        data = frame.unused_data
    return content


def _bounded(stream: Any, most: int) -> bytes | None:
    content = bytearray()
    while part := stream.read(1 << 20):
        content += part
        if len(content) > most:
            return None
    return bytes(content)
