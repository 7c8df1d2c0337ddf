"""Aggregated records: vectors of another implementation, aws-kinesis-agg 1.2.3; damaged ones are not deaggregated."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sources.kinesis.rows import MAGIC, UserRecord, deaggregate

THREE = base64.b64decode(
    "84mawgoIcGxheWVyIDEKCHBsYXllciAyGhkIABoVeyJldmVudE5hbWUiOiJsb2dpbiJ9GhwIARoYeyJldmVudE5hbWUiOiJwdXJjaGFzZSJ9"
    "GhoIABoWeyJldmVudE5hbWUiOiJsb2dvdXQiffmWLRxlaQOm01LzTAwR7UM="
)
WITH_HASH_KEY = base64.b64decode(
    "84mawgoBYRInMzQwMjgyMzY2OTIwOTM4NDYzNDYzMzc0NjA3NDMxNzY4MjExNDU1GgkIABAAGgMA/4D9HfFeaTlHMNYxRLirMDAk"
)


def packed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def user_record(index: int, data: bytes) -> bytes:
    return field(3, varint(1 << 3) + varint(index) + field(3, data))


def test_records_aggregated_by_another_implementation_are_deaggregated() -> None:
    assert deaggregate(THREE) == [
        UserRecord("player 1", b'{"eventName":"login"}'),
        UserRecord("player 2", b'{"eventName":"purchase"}'),
        UserRecord("player 1", b'{"eventName":"logout"}'),
    ]
    assert deaggregate(WITH_HASH_KEY) == [UserRecord("a", b"\x00\xff\x80")]


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=200)), min_size=1, max_size=30))
def test_manually_aggregated_records_are_returned_in_order(records: list[tuple[str, bytes]]) -> None:
    keys = sorted({key for key, _ in records})
    message = b"".join(field(1, key.encode()) for key in keys)
    message += b"".join(user_record(keys.index(key), data) for key, data in records)

    assert deaggregate(packed(message)) == [UserRecord(key, data) for key, data in records]


def test_tags_and_unknown_fields_are_ignored() -> None:
    tag = field(4, field(1, b"name") + field(2, b"value"))
    record = field(3, varint(1 << 3) + varint(0) + field(3, b"x") + tag)

    assert deaggregate(packed(field(1, b"k") + record + field(15, b"of the future"))) == [UserRecord("k", b"x")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        MAGIC,
        MAGIC + bytes(16),
        THREE[:-1],
        THREE[:20] + b"!" + THREE[21:],
        packed(b""),
        packed(field(1, b"k")),
        packed(user_record(0, b"no key table")),
        packed(field(1, b"k") + user_record(1, b"index too large")),
        packed(field(1, b"\xff\xfe") + user_record(0, b"key is no UTF-8")),
        packed(field(1, b"k") + field(3, field(3, b"no index"))),
        packed(field(1, b"k") + b"\x1a\x7fcut off"),
    ],
    ids=str,
)
def test_inconsistent_data_is_not_an_aggregate(data: bytes) -> None:
    assert deaggregate(data) is None


@given(st.binary(max_size=300))
def test_no_bytes_after_the_magic_fail_the_parser(message: bytes) -> None:
    found = deaggregate(packed(message))

    assert deaggregate(MAGIC + message) is None, "it lacks the right digest"
    assert found is None or (found and all(record.data in message for record in found))
