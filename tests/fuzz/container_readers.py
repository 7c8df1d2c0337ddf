"""Slow, obvious readers of Avro and Parquet objects and of compressed content, apart from the product's.

What is damaged leaves some room: a block or a group of rows that cannot be read is one event at least, and one more
than it says it has at most.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.fuzz.plain_readers import BROKEN, NOTHING, Reading, exactly

#: Records and rows beyond that are not read one by one: such an object is beyond the product's budgets too.
MOST_READ = 20_000
_SYNC_BYTES = 16
_MOST_INFLATED = 8 << 20


class _Torn(Exception):
    """The container ends, or stops making sense."""


class _Bytes:
    """What is left of a container."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self.data):
            raise _Torn
        self.position += count
        return self.data[self.position - count : self.position]

    def long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift > 63:
                raise _Torn


def avro_records(payload: bytes) -> Reading:
    """An Avro object container, block by block and record by record."""
    content = _Bytes(payload)
    try:
        if content.take(4) != b"Obj\x01":
            return NOTHING
        metadata = _metadata(content)
        sync = content.take(_SYNC_BYTES)
        declared = json.loads(metadata["avro.schema"])
        schema = fastavro.parse_schema(declared)
    except Exception:  # whatever a damaged header leads to: nothing of it can be read
        return NOTHING
    if not isinstance(declared, dict) or declared.get("type") != "record":
        return NOTHING
    codec = metadata.get("avro.codec", b"null")
    events: list[Any] = []
    least, most, broken = 0, 0.0, 0
    for count, block in _blocks(content, sync):
        records = None if block is None else _records(block, codec, schema, count)
        if records is None:
            broken += 1
            least += 1
            most += max(count, 0) + 1
        else:
            events += [] if broken else records
            least += len(records)
            most += len(records)
    if broken or not _is_bounded(declared):
        return Reading(events, least, most, whole=True, broken=broken)
    return exactly(events)


def _is_bounded(schema: Any) -> bool:
    """Whether the size of a block bounds what its records take in memory; an object is free to be refused otherwise."""
    try:
        return _least_bytes(schema, frozenset()) > 0
    except _Torn:
        return False


def _least_bytes(schema: Any, around: frozenset[str]) -> int:
    if isinstance(schema, list):
        for kind in schema:
            _least_bytes(kind, around)
        return 1
    if isinstance(schema, str):
        if schema in around:
            raise _Torn
        return int(schema != "null")
    kind = schema.get("type")
    if kind == "record":
        inside = around | {schema.get("name", "")}
        return sum(_least_bytes(field["type"], inside) for field in schema["fields"])
    if kind in ("array", "map"):
        if not _least_bytes(schema["items" if kind == "array" else "values"], around) and kind == "array":
            raise _Torn
        return 1
    if kind in ("enum", "fixed"):
        return int(schema.get("size", 1))
    return _least_bytes(kind, around)


def _metadata(content: _Bytes) -> dict[str, bytes]:
    metadata = {}
    while count := content.long():
        if count < 0:
            count, _ = -count, content.long()
        for _ in range(count):
            name = content.take(content.long()).decode()
            metadata[name] = content.take(content.long())
    return metadata


def _blocks(content: _Bytes, sync: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The number of records and the bytes of each block; no bytes where it is torn, which is the last one then."""
    while content.position < len(content.data):
        count = 0
        try:
            count = content.long()
            block = content.take(content.long())
            if content.take(_SYNC_BYTES) != sync:
                raise _Torn
        except _Torn:
            yield count, None
            return
        yield count, block


def _records(block: bytes, codec: bytes, schema: Any, count: int) -> list[Any] | None:
    if not 0 <= count <= MOST_READ or codec not in (b"null", b"deflate"):
        return None
    try:
        if codec == b"deflate":
            inflating = zlib.decompressobj(-15)
            block = inflating.decompress(block, _MOST_INFLATED)
            if not inflating.eof:
                return None
        stream = io.BytesIO(block)
        records = [fastavro.schemaless_reader(stream, schema) for _ in range(count)]
        # A block that says it has fewer records than it has would lose the others.
        return None if stream.read(1) else records
    except Exception:  # the block's own bytes decide what is raised
        return None


def parquet_rows(payload: bytes) -> Reading:
    """A Parquet object, group by group and row by row."""
    if not payload.startswith(b"PAR1"):
        return NOTHING
    try:
        file = pq.ParquetFile(pa.BufferReader(payload), page_checksum_verification=True)
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    except Exception:  # a damaged footer: nothing of it can be read
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
    return Reading(events, least, most, whole=True, broken=broken) if broken else exactly(events)


def _group(file: pq.ParquetFile, number: int) -> pa.Table | None:
    try:
        return file.read_row_group(number)
    except Exception:  # its pages do not hold what the footer says
        return None


def _row(table: pa.Table, index: int) -> Any:
    row = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            row[name] = column[index].as_py()
        except Exception:  # a value that Python has no place for
            return BROKEN
    return row


def content_of(data: bytes, *, most: int) -> bytes | None:
    """What compressed content holds; None where it is damaged, or more than `most` bytes."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return _bounded(gzip.GzipFile(fileobj=io.BytesIO(data)), most)
        # Three letters are a text: a block has to follow, or the end of an empty content.
        if re.match(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", data):
            return _members(data, most)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return _frames(data, most)
    except (EOFError, OSError, ValueError, zlib.error, zstandard.ZstdError):
        return None
    return data


def _members(data: bytes, most: int) -> bytes | None:
    """The content of all members; a reader of files would pass over what lies behind the last one."""
    content = b""
    while data:
        member = bz2.BZ2Decompressor()
        content += member.decompress(data)
        if not member.eof or len(content) > most:
            return None
        data = member.unused_data
    return content


def _frames(data: bytes, most: int) -> bytes | None:
    """The content of all frames; a reader of streams would take a frame that is cut off for its end."""
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
