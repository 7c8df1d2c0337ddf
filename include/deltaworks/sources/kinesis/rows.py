"""Converts a shard's records to Arrow rows: splits aggregated records, and numbers the rows of each shard.

The Kinesis Producer Library aggregates user records: four magic bytes, a protobuf message, and the MD5 of that message.
Data with the magic bytes but invalid content is delivered unchanged, so parsing can report the error. Every user record
is delivered, even if its key belongs to another shard; other readers drop those and rely on the producer to resend
them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from deltaworks.sources.kinesis.pages import Page

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One user record in a record that the Kinesis Producer Library aggregated."""

    partition_key: str
    data: bytes


def deaggregate(data: bytes) -> list[UserRecord] | None:
    """Splits an aggregated record into its user records, in order. Returns None if `data` is not aggregated or is
    damaged.
    """
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + _DIGEST_BYTES:
        return None
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    try:
        aggregate = _AGGREGATE.FromString(message)
    except DecodeError:
        return None
    keys, records = list(aggregate.partition_key_table), aggregate.records
    # protobuf returns invalid UTF-8 as bytes and silently omits missing required fields.
    if not aggregate.IsInitialized() or not all(isinstance(key, str) for key in keys):
        return None
    if not records or any(record.partition_key_index >= len(keys) for record in records):
        return None
    return [UserRecord(keys[record.partition_key_index], record.data) for record in records]


def _aggregate_type() -> Any:
    """Returns the protobuf class of aggregated records, built from the format's description without generated code.

    message AggregatedRecord { repeated string partition_key_table = 1; repeated string explicit_hash_key_table = 2;
                               repeated Record records = 3; }
    message Record { required uint64 partition_key_index = 1; optional uint64 explicit_hash_key_index = 2;
                     required bytes data = 3; repeated Tag tags = 4; }   message Tag { required string key = 1;
                     optional string value = 2; }
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="deltaworks/kinesis_aggregate.proto", package="deltaworks.kinesis", syntax="proto2"
    )
    shapes: dict[str, list[tuple[str, int, int, str | int]]] = {
        "Tag": [
            ("key", 1, field.LABEL_REQUIRED, field.TYPE_STRING),
            ("value", 2, field.LABEL_OPTIONAL, field.TYPE_STRING),
        ],
        "Record": [
            ("partition_key_index", 1, field.LABEL_REQUIRED, field.TYPE_UINT64),
            ("explicit_hash_key_index", 2, field.LABEL_OPTIONAL, field.TYPE_UINT64),
            ("data", 3, field.LABEL_REQUIRED, field.TYPE_BYTES),
            ("tags", 4, field.LABEL_REPEATED, "Tag"),
        ],
        "AggregatedRecord": [
            ("partition_key_table", 1, field.LABEL_REPEATED, field.TYPE_STRING),
            ("explicit_hash_key_table", 2, field.LABEL_REPEATED, field.TYPE_STRING),
            ("records", 3, field.LABEL_REPEATED, "Record"),
        ],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field_name, number, label, kind in fields:
            added = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = field.TYPE_MESSAGE, f".deltaworks.kinesis.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("deltaworks.kinesis.AggregatedRecord"))


_AGGREGATE = _aggregate_type()


ROW_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("shardId", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("subSequenceNumber", pa.int64()),
        pa.field("partitionKey", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        pa.field("ordinal", pa.int64()),
    ]
)
_ROWS_PER_BATCH = 10_000


class Rows:
    """Collects rows of one shard, page by page. Two reads of the same records have the same `digest`."""

    def __init__(self, *, should_deaggregate: bool) -> None:
        self._should_deaggregate = should_deaggregate
        self._sequence_numbers: list[str] = []
        self._sub_sequence_numbers: list[int | None] = []
        self._partition_keys: list[str] = []
        self._data: list[bytes] = []
        self._arrivals_us: list[int] = []
        self._crc_data = self._crc_numbers = 0
        self.records = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._data)

    @property
    def first_sequence_number(self) -> str | None:
        """The sequence number of the first row."""
        return self._sequence_numbers[0] if self._sequence_numbers else None

    @property
    def digest(self) -> str:
        """A checksum of sequence numbers and data, independent of the division into pages."""
        return f"{self._crc_numbers:08x}{self._crc_data:08x}"

    def append(self, page: Page, *, max_rows: int, max_bytes: int) -> int:
        """Appends records of a page up to the limits; returns the number of appended records.

        The first record is appended even if it exceeds a limit. An aggregated record is appended completely or not at
        all.
        """
        if self._should_deaggregate and any(data.startswith(MAGIC) for data in page.data):
            count = self._append_deaggregated(page, max_rows, max_bytes)
        else:
            count = self._fitting_count(page, max_rows, max_bytes)
            self._extend(page.slice(0, count))
        appended = page.slice(0, count)
        numbers = "".join(f"{number}," for number in appended.sequence_numbers)
        self._crc_numbers = zlib.crc32(numbers.encode(), self._crc_numbers)
        self._crc_data = zlib.crc32(b"".join(appended.data), self._crc_data)
        self.records += count
        self.bytes += sum(map(len, appended.data))
        return count

    def _fitting_count(self, page: Page, up_to_rows: int, up_to_bytes: int) -> int:
        count = min(len(page), max(up_to_rows - len(self), 0 if self.records else 1))
        sizes = accumulate(map(len, page.data[:count]), initial=self.bytes)
        fitting = sum(size <= up_to_bytes for size in sizes) - 1
        return max(fitting, 0 if self.records or not count else 1)

    def _append_deaggregated(self, page: Page, up_to_rows: int, up_to_bytes: int) -> int:
        size = self.bytes
        for index, data in enumerate(page.data):
            size += len(data)
            if (len(self) >= up_to_rows or size > up_to_bytes) and (self.records or index):
                return index
            record = page.slice(index, index + 1)
            user_records = deaggregate(data)
            if user_records is None:
                self._extend(record)
            else:
                self._append_user_records(record, user_records)
        return len(page)

    def _append_user_records(self, record: Page, user_records: list[UserRecord]) -> None:
        count = len(user_records)
        self._sequence_numbers += record.sequence_numbers * count
        self._sub_sequence_numbers += range(count)
        self._partition_keys += [user_record.partition_key for user_record in user_records]
        self._data += [user_record.data for user_record in user_records]
        self._arrivals_us += record.arrivals_us * count

    def _extend(self, page: Page) -> None:
        self._sequence_numbers += page.sequence_numbers
        self._sub_sequence_numbers += [None] * len(page)
        self._partition_keys += page.partition_keys
        self._data += page.data
        self._arrivals_us += page.arrivals_us

    def batches(self, *, stream: str, shard_id: str, first_ordinal: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows as Arrow batches, in order. The first row has the ordinal `first_ordinal`."""
        for begin in range(0, len(self), _ROWS_PER_BATCH):
            part = slice(begin, begin + _ROWS_PER_BATCH)
            arrivals = pa.array(self._arrivals_us[part], pa.int64())
            count = len(arrivals)
            columns = [
                pa.repeat(stream, count),
                pa.repeat(shard_id, count),
                pa.array(self._sequence_numbers[part], pa.string()),
                pa.array(self._sub_sequence_numbers[part], pa.int64()),
                pa.array(self._partition_keys[part], pa.string()),
                pa.array(self._data[part], pa.binary()),
                arrivals.cast(ROW_SCHEMA.field("approximateArrivalTimestamp").type),
                pa.array(range(first_ordinal + begin, first_ordinal + begin + count), pa.int64()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
