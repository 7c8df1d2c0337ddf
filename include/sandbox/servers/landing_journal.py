"""What the landing side remembers over its end: a SQLite file beside it, written before a request is answered.

moto keeps everything in memory. Objects last in the store behind it; the rest, which is messages in queues, records in
streams, how these are declared, and objects whose announcement is not out yet, is in here.

A write is in the file when the call returns, whatever happens to the process then. A machine that loses its power may
lose the last moments: so would the objects.
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
    """An object that is being put, and will have to be announced once it is there."""

    number: int
    bucket: str
    key: str
    event: str


class LandingJournal:
    """The file. Safe for many threads; for one process at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    # -- what is declared: queues, topics, subscriptions, streams, settings of buckets ---------------------------

    def declare(self, kind: str, name: str, content: Any) -> None:
        """Keep a declaration in place of the one of its name, which keeps its place among the others."""
        statement = "INSERT INTO declarations VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET content = excluded.content"
        self._write(statement, kind, name, json.dumps(content, default=_plain))

    def declare_all(self, kind: str, contents: Mapping[str, Any]) -> None:
        """Keep these declarations of a kind and no others."""
        rows = [(kind, name, json.dumps(content, default=_plain)) for name, content in contents.items()]
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM declarations WHERE kind = ?", (kind,))
            self._connection.executemany("INSERT INTO declarations VALUES (?, ?, ?)", rows)
            self._connection.execute("COMMIT")

    def delete_declaration(self, kind: str, name: str) -> None:
        """Drop a declaration."""
        self._write("DELETE FROM declarations WHERE kind = ? AND name = ?", kind, name)

    def declarations(self, kind: str) -> dict[str, Any]:
        """All declarations of a kind by name, the oldest first."""
        rows = self._rows("SELECT name, content FROM declarations WHERE kind = ? ORDER BY rowid", kind)
        return {name: json.loads(content, object_hook=_decode_record) for name, content in rows}

    # -- messages of queues --------------------------------------------------------------------------------------

    def store_message(self, queue: str, message_id: str, content: dict[str, Any]) -> None:
        """Keep a message of a queue; one that was in another queue is in this one from now on."""
        text = json.dumps(content, default=_plain)
        self._write("INSERT OR REPLACE INTO messages (id, queue, content) VALUES (?, ?, ?)", message_id, queue, text)

    def delete_message(self, message_id: str) -> None:
        """Drop a message that was deleted."""
        self._write("DELETE FROM messages WHERE id = ?", message_id)

    def delete_messages(self, queue: str) -> None:
        """Drop all messages of a queue."""
        self._write("DELETE FROM messages WHERE queue = ?", queue)

    def messages(self, queue: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Id and content of a queue's messages, in the order they were sent."""
        for message_id, content in self._rows(
            "SELECT id, content FROM messages WHERE queue = ? ORDER BY position", queue
        ):
            yield message_id, json.loads(content, object_hook=_decode_record)

    # -- records of streams --------------------------------------------------------------------------------------

    def store_record(self, stream: str, shard: str, number: int, created_at: float, content: dict[str, Any]) -> None:
        """Keep a record of a shard."""
        text = json.dumps(content, default=_plain)
        self._write(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", stream, shard, str(number), created_at, text
        )

    def delete_records(self, stream: str, *, before: float | None = None) -> None:
        """Drop the records of a stream, or those of it that are older."""
        horizon = float("inf") if before is None else before
        self._write("DELETE FROM records WHERE stream = ? AND created_at < ?", stream, horizon)

    def records(self, stream: str) -> Iterator[tuple[str, int, float, dict[str, Any]]]:
        """Shard, number, time and content of a stream's records, in order of their numbers, which are equally long."""
        statement = "SELECT shard, number, created_at, content FROM records WHERE stream = ? ORDER BY number"
        for shard, number, created_at, content in self._rows(statement, stream):
            yield shard, int(number), created_at, json.loads(content, object_hook=_decode_record)

    # -- objects that are announced once they are there ----------------------------------------------------------

    def add_pending(self, bucket: str, key: str, event: str) -> int:
        """Note, before an object is put, that it is to be announced. Gives the number to fulfil."""
        with self._lock:
            cursor = self._connection.execute(
                "INSERT INTO announcements (bucket, key, event) VALUES (?, ?, ?)", (bucket, key, event)
            )
            return int(cursor.lastrowid or 0)

    def delete_pending(self, number: int) -> None:
        """Note that it was announced, or that there is nothing to announce."""
        self._write("DELETE FROM announcements WHERE number = ?", number)

    def pending(self) -> list[Announcement]:
        """What is not announced yet, in order."""
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
    """Bytes as JSON; moto holds nothing else that JSON does not."""
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot be kept")


def _decode_record(record: dict[str, Any]) -> Any:
    return base64.b64decode(record["_base64"]) if record.keys() == {"_base64"} else record
