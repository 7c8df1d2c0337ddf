"""Changes between two states of a feed's source, ordered by key, and their messages: ids and JSON encoding.

Both states are immutable, so the same pair always yields the same changes, and a delivery can resume. Equal rows are no
change, even if their partition was rebuilt.

The id identifies a change within a delivery: a message that is sent again, after a lost reply or in a replay, has the
same id. `number` is the increasing number of the delivery, so of two messages with one key the larger number is newer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import duckdb
import orjson

from deltaworks.control.records.feeds import Delivery
from deltaworks.specs.feeds import DELETE, UPSERT

#: Number of rows per fetch.
_FETCH_ROWS = 1000
_ROW_COLUMN: Final = "_row"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one key. `row` is None if the row was deleted.

    `row_count` is the number of rows that have the key now; with more than one the row is ambiguous. A `key` that
    contains null identifies no row.
    """

    key: dict[str, Any]
    row: dict[str, Any] | None
    row_count: int


def iter_changes(
    connection: duckdb.DuckDBPyConnection,
    *,
    before: str | None,
    after: str | None,
    key: Sequence[str],
    columns: Sequence[str],
    skip: int = 0,
) -> Iterator[Change]:
    """Yields the changes from relation `before` to relation `after`, ordered by key.

    Args:
        before: a view of the connection with the columns `key` and `columns`; None for no rows. `after` likewise.
        skip: number of changes to skip at the start.
    """
    if before is None and after is None:
        return
    statement = _diff_sql(before, after, key=key, columns=columns)
    result = connection.execute(f"{statement} OFFSET {int(skip)}")
    while rows := result.fetchmany(_FETCH_ROWS):
        for *values, row_count, row in rows:
            content = row if columns else {}
            yield Change(
                key=dict(zip(key, values, strict=True)), row=content if row_count else None, row_count=row_count
            )


def count_changes(
    connection: duckdb.DuckDBPyConnection,
    *,
    before: str | None,
    after: str | None,
    key: Sequence[str],
    columns: Sequence[str],
) -> int:
    """Counts the changes."""
    if before is None and after is None:
        return 0
    statement = _diff_sql(before, after, key=key, columns=columns)
    row = connection.execute(f"SELECT count(*) FROM ({statement})").fetchone()
    return int(row[0]) if row else 0


def _diff_sql(before: str | None, after: str | None, *, key: Sequence[str], columns: Sequence[str]) -> str:
    keys = [_quoted(name) for name in key]
    join_condition = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name in keys)
    key_columns = ", ".join(f"coalesce(new.{name}, old.{name}) AS {name}" for name in keys)
    # Keys with a null are never delivered, so their deletion is not a change.
    has_key = " AND ".join(f"coalesce(new.{name}, old.{name}) IS NOT NULL" for name in keys)
    row = _quoted(_ROW_COLUMN)
    old, new = _group_by_key_sql(before, after, keys, columns), _group_by_key_sql(after, before, keys, columns)
    return (
        f"WITH old AS ({old}), new AS ({new}) "
        f"SELECT {key_columns}, coalesce(new.row_count, 0) AS row_count, new.{row} "
        f"FROM old FULL JOIN new ON {join_condition} "
        "WHERE (old.row_count IS DISTINCT FROM new.row_count OR CASE WHEN new.row_count > 1 "
        f"THEN old.digest IS DISTINCT FROM new.digest ELSE old.{row} IS DISTINCT FROM new.{row} END) "
        f"AND (new.row_count IS NOT NULL OR {has_key}) ORDER BY {', '.join(f'{name} NULLS FIRST' for name in keys)}"
    )


def _group_by_key_sql(relation: str | None, other: str | None, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Returns SQL with one row per key: row count, one of the rows, and a digest of all.

    Without a relation the result is empty and has the columns of `other`.
    """
    fields = ", ".join(f"{_quoted(name)} := {_quoted(name)}" for name in columns) or "present := true"
    key_list, row = ", ".join(keys), _quoted(_ROW_COLUMN)
    rows = _quoted(relation or other or "") + ("" if relation is not None else " WHERE false")
    return (
        f"SELECT {key_list}, count(*) AS row_count, bit_xor(hash({row})) AS digest, any_value({row}) AS {row} "
        f"FROM (SELECT {key_list}, struct_pack({fields}) AS {row} FROM {rows}) GROUP BY {key_list}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
