"""How Airflow's SQLite database is opened: a transaction that begins with a savepoint takes the write lock at once.

Python's driver begins no transaction before a savepoint, so SQLite begins one that reads. Where anybody writes before
its own first write, that write fails with "database is locked" however long the time-out is, since what it has read is
old. `airflow backfill create` failed so beside a scheduler, and what it then took back ended the scheduler.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Self


class _RetryingCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        if sql.startswith("SAVEPOINT") and not self.connection.in_transaction:
            super().execute("BEGIN IMMEDIATE")
        return super().execute(sql, parameters)


class RetryingConnection(sqlite3.Connection):
    """A connection that waits for other writers before a savepoint, for as long as its time-out says."""

    def cursor(self, factory: Any = _RetryingCursor) -> Any:
        """A cursor of this connection."""
        return super().cursor(factory)


#: What Airflow gives `sqlite3.connect` besides.
CONNECT_ARGS: dict[str, Any] = {"factory": RetryingConnection}
