"""Opens Airflow's SQLite database so that a transaction starting with a savepoint takes the write lock immediately.

Python's driver starts no transaction before a savepoint, so SQLite starts a read transaction. If another connection
writes before its first write, that write fails with "database is locked" regardless of the timeout, since its snapshot
is stale. `airflow backfill create` failed this way during scheduling, and its rollback ended the scheduler.
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
    """A SQLite connection that takes the write lock before a savepoint, waiting for other writers up to its timeout."""

    def cursor(self, factory: Any = _RetryingCursor) -> Any:
        """Returns a cursor of this connection."""
        return super().cursor(factory)


#: Additional arguments that Airflow passes to `sqlite3.connect`.
CONNECT_ARGS: dict[str, Any] = {"factory": RetryingConnection}
