"""Takes apart records that a producer library has packed together.

The Kinesis Producer Library puts many user records into one: four magic bytes, a protobuf message, and the MD5 of that
message. What carries the mark but does not hold together is no aggregate: it is handed over as it is, so that parsing
can say what is wrong with it. Every user record is handed over, whatever shard its key belongs to: other readers
drop those outside the shard, relying on a producer that sends them again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One record as its producer gave it."""

    partition_key: str
    data: bytes


def taken_apart(data: bytes) -> list[UserRecord] | None:
    """The user records in an aggregated record, in order; None when `data` is none, or is damaged."""
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
    # protobuf gives a text that is no UTF-8 as bytes, and leaves out what is required without a word.
    if not aggregate.IsInitialized() or not all(isinstance(key, str) for key in keys):
        return None
    if not records or any(record.partition_key_index >= len(keys) for record in records):
        return None
    return [UserRecord(keys[record.partition_key_index], record.data) for record in records]


def _aggregate_type() -> Any:
    """The message class, from the format's description (aws-kinesis-agg, messages.proto) without generated code.

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
