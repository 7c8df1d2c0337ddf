"""Airflow's SQLite database with concurrent writers: a savepoint waits for the lock instead of failing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox.airflow.database import CONNECT_ARGS


def opened(path: Path, **more: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60, check_same_thread=False, **more)


def write(connection: sqlite3.Connection, who: str) -> None:
    connection.cursor().execute("INSERT INTO runs VALUES (?)", (who,))
    connection.commit()


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_what_reads_and_writes_after_a_savepoint_waits_for_its_turn_and_others_for_it(
    tmp_path: Path, off: bool
) -> None:
    path = tmp_path / "airflow.db"
    setup = opened(path)
    setup.execute("PRAGMA journal_mode=WAL")
    setup.execute("CREATE TABLE runs (who TEXT)")
    backfill, scheduler = opened(path, **({} if off else CONNECT_ARGS)), opened(path)
    cursor = backfill.cursor()
    cursor.execute("SAVEPOINT one")
    cursor.execute("SELECT count(*) FROM runs").fetchall()
    other = threading.Thread(target=write, args=(scheduler, "scheduler"))
    other.start()
    if off:
        other.join()
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            cursor.execute("INSERT INTO runs VALUES ('backfill')")
        return

    cursor.execute("INSERT INTO runs VALUES ('backfill')")
    cursor.execute("RELEASE one")
    assert opened(path).execute("SELECT who FROM runs").fetchall() == [], "what is released is not committed yet"
    backfill.commit()
    other.join()

    assert opened(path).execute("SELECT who FROM runs").fetchall() == [("backfill",), ("scheduler",)]


def test_a_savepoint_within_a_transaction_begins_none(tmp_path: Path) -> None:
    connection = opened(tmp_path / "airflow.db", **CONNECT_ARGS)
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE runs (who TEXT)")
    cursor.execute("INSERT INTO runs VALUES ('a')")

    cursor.execute("SAVEPOINT one")
    cursor.execute("INSERT INTO runs VALUES ('b')")
    cursor.execute("ROLLBACK TO one")
    connection.commit()

    assert cursor.execute("SELECT who FROM runs").fetchall() == [("a",)]
