"""Messages of feeds: ids and JSON encoding of changes.

The id identifies a change within a delivery: a message that is sent again, after a lost reply or in a replay, has the
same id. `number` is the increasing number of the delivery, so of two messages with one key the larger number is newer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from deltaworks.control.records.feeds import Delivery
from deltaworks.feeds.changes import Change
from deltaworks.specs.feeds import DELETE, UPSERT


class DeadReason(StrEnum):
    """Why a change can never be delivered."""

    TOO_LARGE = "too_large"
    REFUSED = "refused"
    KEY_NULL = "key_null"
    KEY_NOT_UNIQUE = "key_not_unique"


@dataclass(frozen=True, slots=True)
class Message:
    """One change as sent. Messages with the same `key` are never reordered."""

    id: str
    key: str
    op: str
    feed: str
    body: bytes


def build_message(change: Change, *, feed: str, incarnation: str, delivery: Delivery) -> Message:
    """Builds the message of a change."""
    key = _to_json(change.key)
    digest = hashlib.sha256(f"{feed}\n{incarnation}\n{delivery.number}\n".encode() + key)
    op = DELETE if change.row is None else UPSERT
    message_id = digest.hexdigest()[:32]
    record = {
        "feed": feed,
        "id": message_id,
        "number": delivery.number,
        "op": op,
        "key": change.key,
        "row": None if change.row is None else {**change.key, **change.row},
        "at": delivery.started_at,
    }
    return Message(id=message_id, key=key.decode(), op=op, feed=feed, body=_to_json(record))


def key_problem(change: Change) -> tuple[DeadReason, str] | None:
    """Returns why a key identifies no row; None if it identifies one."""
    nulls = [name for name, value in change.key.items() if value is None]
    if nulls:
        return DeadReason.KEY_NULL, f"{', '.join(nulls)} of the key is null"
    if change.row_count > 1:
        return DeadReason.KEY_NOT_UNIQUE, f"{change.row_count} rows have this key"
    return None


def _to_json(record: Mapping[str, Any]) -> bytes:
    """Encodes a value as JSON.

    Decimals become strings, so that none is rounded; timestamps are in ISO 8601, bytes in base64, and NaN is null.
    """
    try:
        return orjson.dumps(record, default=_json_default, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        # An integer above 64 bits, or a map key that orjson does not support.
        return json.dumps(_to_json_types(record), ensure_ascii=False, separators=(",", ":")).encode()


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return str(value)


def _to_json_types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): _to_json_types(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(part) for part in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return orjson.loads(orjson.dumps(value, default=_json_default))
