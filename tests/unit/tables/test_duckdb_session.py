"""Sessions share a database but none of its contents."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest

from deltaworks.tables.duckdb_session import _database, duckdb_session


def test_registered_tables_and_settings_are_private_to_a_session() -> None:
    with duckdb_session() as one, duckdb_session() as other:
        for session, value in ((one, 1), (other, 2)):
            session.register("numbers", pa.table({"n": [value]}))
        one.execute("CREATE TEMP TABLE kept AS SELECT 1 AS n").fetchall()
        one.execute("SET TimeZone = 'Asia/Tokyo'")

        assert one.sql("SELECT n FROM numbers").fetchall() == [(1,)]
        assert other.sql("SELECT n FROM numbers").fetchall() == [(2,)]
        assert other.sql("SELECT current_setting('TimeZone')").fetchall() != [("Asia/Tokyo",)]
        with pytest.raises(duckdb.CatalogException):
            other.execute("SELECT n FROM kept")

    with duckdb_session() as later, pytest.raises(duckdb.CatalogException):
        later.execute("SELECT n FROM numbers")


def test_threads_have_separate_sessions() -> None:
    def sum_of(number: int) -> int:
        with duckdb_session() as session:
            session.register("numbers", pa.table({"n": [number] * 100}))
            ((total,),) = session.sql("SELECT sum(n) FROM numbers").fetchall()
        return int(total)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(sum_of, range(200))) == [number * 100 for number in range(200)]


def test_a_failed_database_is_replaced() -> None:
    _database(os.getpid()).close()

    for _ in range(2):
        with duckdb_session() as session:
            assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_a_forked_process_has_its_own_database() -> None:
    with duckdb_session() as session:
        assert session.sql("SELECT 1").fetchall() == [(1,)]
    before = _database(os.getpid())
    child = os.fork()
    if child == 0:  # pragma: no cover
        with duckdb_session() as session:
            is_right = session.sql("SELECT sum(n) FROM range(1_000_000) AS r(n)").fetchall() == [(499_999_500_000,)]
        os._exit(0 if is_right and _database(os.getpid()) is not before else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
