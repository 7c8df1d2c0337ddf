"""Sessions of DuckDB over rows in memory: a few in each merge of a batch, for which a database each is too much.

A database takes 20 ms of a processor to open, a session of one that is open a hundredth of a millisecond.
"""

from __future__ import annotations

import os
from functools import lru_cache

import duckdb


def duckdb_session() -> duckdb.DuckDBPyConnection:
    """A session of this process's database in memory, to be closed after use: a context manager.

    What it registers and sets, and its temporary tables, are its own. Safe in threads, each with a session of its own,
    and in processes that were forked.
    """
    try:
        session = _database(os.getpid()).cursor()
        session.execute("SELECT 1").fetchall()
    except duckdb.Error:
        # A database that has failed once from within refuses everything from then on.
        _database.cache_clear()
        session = _database(os.getpid()).cursor()
    return session


@lru_cache(maxsize=1)
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of a process: the threads of one do not survive a fork."""
    return duckdb.connect(":memory:")
