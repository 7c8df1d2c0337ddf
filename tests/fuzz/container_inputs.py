"""Hypothesis strategies for Avro and Parquet objects: valid ones, unusual types and values, and decompression bombs.

Avro containers are encoded by hand, so that their blocks can contradict the specification.
"""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from hypothesis import strategies as st

from tests.fuzz.text_inputs import RIGHT_EVENTS

_SYNC = b"S" * 16
_EVENT_FIELDS = [
    {"name": "name", "type": "string"},
    {"name": "time", "type": "long"},
    {"name": "id", "type": "string"},
]
_FAR = [0, 1, -1, 10**9, 10**12, 10**15, 10**18, 2**62, -(2**62), -62_135_596_800_000_001]


def long(value: int) -> bytes:
    """Encodes a number as an Avro long."""
    value, out = (value << 1) ^ (value >> 63), b""
    while value & ~0x7F:
        out += bytes([(value & 0x7F) | 0x80])
        value >>= 7
    return out + bytes([value])


def avro_container(schema: Any, blocks: Sequence[tuple[int, bytes]], codec: str = "null") -> bytes:
    """Returns a container of blocks with record counts and bytes that may contradict each other."""
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    out = b"Obj\x01" + long(len(metadata))
    for name, value in metadata.items():
        out += long(len(name)) + name.encode() + long(len(value)) + value
    out += long(0) + _SYNC
    for count, data in blocks:
        out += long(count) + long(len(data)) + data + _SYNC
    return out


def _record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "event", "fields": list(fields)}


def encoded(schema: Any, record: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), record)
    return sink.getvalue()


_EVENT = _record(*_EVENT_FIELDS, {"name": "device", "type": ["null", "string"], "default": None})
_AVRO_EVENTS = RIGHT_EVENTS.map(lambda event: {"device": None} | event)


def _deflated(data: bytes) -> bytes:
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflating.compress(data) + deflating.flush()


def avro_blocks(groups: list[list[dict[str, Any]]], codec: str, lie: int) -> bytes:
    blocks = []
    for records in groups:
        data = b"".join(encoded(_EVENT, record) for record in records)
        blocks.append((len(records) + lie, _deflated(data) if codec == "deflate" else data))
    return avro_container(_EVENT, blocks, codec)


def _recursive(depth: int) -> bytes:
    schema = _record({"name": "next", "type": ["null", "event"]})
    return avro_container(schema, [(1, b"\x02" * depth + b"\x00")])


def _odd(kind: Any, data: bytes, count: int) -> bytes:
    fields = [*_EVENT_FIELDS, {"name": "odd", "type": kind}]
    event = long(5) + b"login" + long(1_700_000_000) + long(1) + b"a"
    return avro_container(_record(*fields), [(count, (event + data) * min(count, 100))])


_ODD_KINDS: list[Any] = [
    *(
        {"type": kind, "logicalType": logical}
        for kind, logical in [
            ("long", "timestamp-millis"),
            ("long", "timestamp-micros"),
            ("long", "time-micros"),
            ("int", "time-millis"),
            ("long", "local-timestamp-millis"),
            ("long", "local-timestamp-micros"),
            ("int", "date"),
            ("string", "uuid"),
        ]
    ),
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", ["null", "long"], ["int", "string"]),
    {"type": "array", "items": "null"},
    {"type": "array", "items": "long"},
    {"type": "map", "values": "long"},
    {"type": "enum", "name": "e", "symbols": ["A", "B"]},
    {"type": "fixed", "name": "f", "size": 4},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 400},
    {"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"},
    {"type": "map", "values": {"type": "array", "items": ["null", "string"]}},
]
_ODD_DATA = st.one_of(
    st.sampled_from(_FAR).map(long),
    st.text(max_size=5).map(lambda text: long(len(text.encode())) + text.encode()),
    st.sampled_from(
        [
            long(2) + b"\xff\xfe",
            long(-1),
            long(2**31) + long(0),
            b"\0" * 8,
            b"\xff" * 12,
            b"\0\0\xc0\x7f" * 3,
            long(10**9) + b"x",
        ]
    ),
    st.binary(max_size=12),
)


def avro_payloads() -> st.SearchStrategy[bytes]:
    """Generates containers: events in blocks, types and values of all kinds, recursion, and bombs."""
    records_without_bytes = _record({"name": "a", "type": "null"})
    array_without_bytes = _record({"name": "a", "type": {"type": "array", "items": "null"}})
    text = _record({"name": "a", "type": "bytes"})
    counts = st.sampled_from([1, 10, 1_000, 100_000, 10_000_000, 2**40, -5])
    return st.one_of(
        st.builds(
            avro_blocks,
            st.lists(st.lists(_AVRO_EVENTS, max_size=4), max_size=3),
            st.sampled_from(["null", "deflate"]),
            st.sampled_from([0, 0, 0, 0, 1, -1]),
        ),
        st.builds(_odd, st.sampled_from(_ODD_KINDS), _ODD_DATA, st.sampled_from([1, 1, 2, 1_000])),
        st.integers(1, 400).map(_recursive) | st.sampled_from([1_000, 5_000, 100_000]).map(_recursive),
        counts.map(lambda count: avro_container(records_without_bytes, [(count, b"")])),
        counts.map(lambda count: avro_container(array_without_bytes, [(1, long(count) + long(0))])),
        st.sampled_from([10, 10**6, 2**27, 2**28]).map(
            lambda size: avro_container(text, [(1, _deflated(long(size) + bytes(size)))], "deflate")
        ),
        st.sampled_from(
            [
                '"string"',
                '["null", "string"]',
                "{",
                '{"type":"record"}',
                '{"type":"record","name":"a","fields":[]}',
                "[" * 5_000,
            ]
        ).map(lambda schema: avro_container(schema, [(3, b"")]).replace(json.dumps(schema).encode(), schema.encode())),
        st.just("snappy").map(lambda codec: avro_container(_EVENT, [(1, b"\0\0\0\0\0")], codec)),
    )


_COLUMNS: dict[str, pa.DataType] = {
    **{f"timestamp_{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"instant_{unit}": pa.timestamp(unit, "UTC") for unit in ("ms", "us", "ns")},
    "instant_zone": pa.timestamp("us", "Europe/Zurich"),
    "instant_no_zone": pa.timestamp("us", "Nowhere/Land"),
    "time32": pa.time32("ms"),
    "time64": pa.time64("ns"),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "duration": pa.duration("us"),
    "duration_ns": pa.duration("ns"),
    "uint64": pa.uint64(),
    "int64": pa.int64(),
}


def _numbers(kind: pa.DataType, numbers: list[int | None]) -> pa.Array:
    width = 32 if kind.bit_width == 32 else 64
    bits = [None if number is None else number & ((1 << width) - 1) for number in numbers]
    return pa.array(bits, pa.uint32() if width == 32 else pa.uint64()).view(kind)


def _texts(raw: list[bytes | None], kind: pa.DataType) -> pa.Array:
    array = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(kind, len(array), array.buffers()) if kind != pa.binary() else array


def _nested(value: Any, depth: int, form: str) -> pa.Array:
    array = pa.array([value])
    for _ in range(depth):
        if form == "list":
            array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
        else:
            array = pa.StructArray.from_arrays([array], ["a"])
    return array


_ODD_COLUMNS = st.one_of(
    st.builds(
        _numbers,
        st.sampled_from(list(_COLUMNS.values())),
        st.lists(st.none() | st.sampled_from(_FAR) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    ),
    st.builds(
        _texts,
        st.lists(st.none() | st.binary(max_size=5) | st.just(b"\xff\xfe"), min_size=1, max_size=4),
        st.sampled_from([pa.string(), pa.binary()]),
    ),
    st.lists(st.floats(width=32) | st.floats(), min_size=1, max_size=4).map(
        lambda values: pa.array(values, pa.float64())
    ),
    st.builds(_nested, st.integers(0, 9), st.integers(0, 120), st.sampled_from(["list", "struct"])),
    st.lists(st.decimals(-(10**15), 10**15, places=4), min_size=1, max_size=4).map(
        lambda values: pa.array(values, pa.decimal128(38, 4))
    ),
    st.lists(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=3), min_size=1, max_size=4).map(
        lambda values: pa.array(values, pa.map_(pa.string(), pa.int64()))
    ),
    st.lists(st.none() | st.dates(dt.date(1, 1, 1)), min_size=1, max_size=4).map(pa.array),
)


def _table(columns: list[pa.Array], events: list[dict[str, Any]], with_events: bool) -> pa.Table:
    rows = max((len(column) for column in columns), default=len(events))
    arrays = {f"c{index}": column for index, column in enumerate(columns) if len(column) == rows}
    if with_events and events:
        for name in ("name", "time", "id", "device"):
            arrays[name] = pa.array([events[index % len(events)].get(name) for index in range(rows)])
    return pa.table(arrays or {"a": pa.array([1])})


def parquet_object(table: pa.Table, **options: Any) -> bytes:
    """Returns a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _bomb(rows: int, width: int) -> bytes:
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array(["x" * width]))
    return parquet_object(pa.table({"a": column}), compression="zstd", store_schema=False)


def parquet_payloads() -> st.SearchStrategy[bytes]:
    """Generates files with columns of all types, values that Python cannot represent, and bombs."""
    tables = st.builds(
        _table, st.lists(_ODD_COLUMNS, max_size=2), st.lists(RIGHT_EVENTS, min_size=1, max_size=4), st.booleans()
    )
    right = st.lists(RIGHT_EVENTS, min_size=1, max_size=6).map(lambda events: _table([], events, True))
    options = st.fixed_dictionaries(
        {"compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]), "store_schema": st.booleans()},
        optional={
            "row_group_size": st.sampled_from([1, 2]),
            "write_page_checksum": st.booleans(),
            "data_page_version": st.just("2.0"),
        },
    )
    bombs = st.builds(_bomb, st.sampled_from([1_000, 10_000, 10_000, 1_000_000]), st.sampled_from([10, 1_000]))
    written = st.builds(lambda table, how: parquet_object(table, **how), st.one_of(right, tables, tables), options)
    return st.one_of(*[written] * 9, bombs)


def _zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("events.json", data)
    return sink.getvalue()


COMPRESSORS = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bzip2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "zip": _zipped,
}


def compressed_payloads(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Compresses payloads in one or several members, with padding or trailing garbage, truncated, or of extreme
    size."""
    members = st.lists(payloads, min_size=1, max_size=2)
    behind = st.sampled_from([b"", b"", b"", b"\0" * 9, b"garbage", b"\x1f\x8b"])
    packed = st.builds(
        lambda kind, parts, rest: b"".join(map(COMPRESSORS[kind], parts)) + rest,
        st.sampled_from(list(COMPRESSORS)),
        members,
        behind,
    )
    bombs = st.builds(
        lambda kind, token, size: COMPRESSORS[kind](token * (size // len(token))),
        st.sampled_from(["gzip", "bzip2", "zstd"]),
        st.sampled_from([b"\0", b"{}", b"[1,", b'{"a":1}\n', b" "]),
        st.sampled_from([10**4, 10**5, 10**6, 2 * 10**7]),
    )
    cut = st.builds(lambda data, length: data[:length], packed, st.integers(0, 60))
    return st.one_of(*[packed] * 8, cut, bombs)
