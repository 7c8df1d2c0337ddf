"""The durable state of the moto server: a SQLite file that is written before a request is answered.

moto keeps all state in memory. Objects are in a durable store; the journal has the rest: queue messages, stream
records, declarations, and pending object notifications.

Writes survive a process crash. A power failure may lose the latest writes, as it may lose the latest objects.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS declarations (kind TEXT, name TEXT, content TEXT, PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS messages (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, queue TEXT, content TEXT);
CREATE TABLE IF NOT EXISTS records (
    stream TEXT, shard TEXT, number TEXT, created_at REAL, content TEXT, PRIMARY KEY (stream, shard, number));
CREATE TABLE IF NOT EXISTS announcements (
    number INTEGER PRIMARY KEY AUTOINCREMENT, bucket TEXT, key TEXT, event TEXT);
"""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A pending notification of an object that is being put."""

    number: int
    bucket: str
    key: str
    event: str


class LandingJournal:
    """The journal file. Thread-safe, within one process at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    # -- declarations: queues, topics, subscriptions, streams, bucket settings ----------------------------------

    def declare(self, kind: str, name: str, content: Any) -> None:
        """Inserts or replaces a declaration. Replacing one keeps its position."""
        statement = "INSERT INTO declarations VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET content = excluded.content"
        self._write(statement, kind, name, json.dumps(content, default=_plain))

    def declare_all(self, kind: str, contents: Mapping[str, Any]) -> None:
        """Replaces all declarations of a kind, in one transaction."""
        rows = [(kind, name, json.dumps(content, default=_plain)) for name, content in contents.items()]
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM declarations WHERE kind = ?", (kind,))
            self._connection.executemany("INSERT INTO declarations VALUES (?, ?, ?)", rows)
            self._connection.execute("COMMIT")

    def delete_declaration(self, kind: str, name: str) -> None:
        """Deletes a declaration."""
        self._write("DELETE FROM declarations WHERE kind = ? AND name = ?", kind, name)

    def declarations(self, kind: str) -> dict[str, Any]:
        """Returns all declarations of a kind by name, oldest first."""
        rows = self._rows("SELECT name, content FROM declarations WHERE kind = ? ORDER BY rowid", kind)
        return {name: json.loads(content, object_hook=_decode_record) for name, content in rows}

    # -- messages of queues --------------------------------------------------------------------------------------

    def store_message(self, queue: str, message_id: str, content: dict[str, Any]) -> None:
        """Stores a message of a queue. A message with the same id moves to this queue."""
        text = json.dumps(content, default=_plain)
        self._write("INSERT OR REPLACE INTO messages (id, queue, content) VALUES (?, ?, ?)", message_id, queue, text)

    def delete_message(self, message_id: str) -> None:
        """Deletes a message."""
        self._write("DELETE FROM messages WHERE id = ?", message_id)

    def delete_messages(self, queue: str) -> None:
        """Deletes all messages of a queue."""
        self._write("DELETE FROM messages WHERE queue = ?", queue)

    def messages(self, queue: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields id and content of a queue's messages, in the order they were sent."""
        for message_id, content in self._rows(
            "SELECT id, content FROM messages WHERE queue = ? ORDER BY position", queue
        ):
            yield message_id, json.loads(content, object_hook=_decode_record)

    # -- records of streams --------------------------------------------------------------------------------------

    def store_record(self, stream: str, shard: str, number: int, created_at: float, content: dict[str, Any]) -> None:
        """Stores a record of a shard."""
        text = json.dumps(content, default=_plain)
        self._write(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", stream, shard, str(number), created_at, text
        )

    def delete_records(self, stream: str, *, before: float | None = None) -> None:
        """Deletes a stream's records created before a time (epoch seconds); by default all."""
        horizon = float("inf") if before is None else before
        self._write("DELETE FROM records WHERE stream = ? AND created_at < ?", stream, horizon)

    def records(self, stream: str) -> Iterator[tuple[str, int, float, dict[str, Any]]]:
        """Yields shard, sequence number, creation time and content of a stream's records, by sequence number.

        Sequence numbers are sorted as text, which works because all have the same length.
        """
        statement = "SELECT shard, number, created_at, content FROM records WHERE stream = ? ORDER BY number"
        for shard, number, created_at, content in self._rows(statement, stream):
            yield shard, int(number), created_at, json.loads(content, object_hook=_decode_record)

    # -- pending object notifications --------------------------------------------------------------------------------

    def add_pending(self, bucket: str, key: str, event: str) -> int:
        """Adds a pending notification before its object is put; returns its number for `delete_pending`."""
        with self._lock:
            cursor = self._connection.execute(
                "INSERT INTO announcements (bucket, key, event) VALUES (?, ?, ?)", (bucket, key, event)
            )
            return int(cursor.lastrowid or 0)

    def delete_pending(self, number: int) -> None:
        """Deletes a notification that was published or whose object does not exist."""
        self._write("DELETE FROM announcements WHERE number = ?", number)

    def pending(self) -> list[Announcement]:
        """Returns all pending notifications, oldest first."""
        return [
            Announcement(*row)
            for row in self._rows("SELECT number, bucket, key, event FROM announcements ORDER BY number")
        ]

    def _write(self, statement: str, *values: Any) -> None:
        with self._lock:
            self._connection.execute(statement, values)

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()


def _plain(value: Any) -> dict[str, str]:
    """Encodes bytes as JSON. moto's state contains no other types that JSON lacks."""
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot be kept")


def _decode_record(record: dict[str, Any]) -> Any:
    return base64.b64decode(record["_base64"]) if record.keys() == {"_base64"} else record
