"""Sessions share a database but none of its contents; views are SQL over tables and other views."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from deltaworks.errors import ConfigError
from deltaworks.gold.references import refresh_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.checks.project import check_project
from deltaworks.tables.duckdb_session import _database, duckdb_session
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from tests.unit.gold.test_references import GOLD, REFERENCES, SPLITS, SQL
from tests.unit.maintenance.table_data import ORDERS, SHOP, make, project


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


VIEWS = """\
views:
  - {name: newest, reads: [per_day], sql: views/newest.sql}
  - {name: per_day, reads: [orders, splits], sql: views/per_day.sql}
"""
PER_DAY = "WITH a AS (SELECT event_date FROM orders)\nSELECT event_date, count(*) AS n FROM a, splits GROUP BY ALL; \n"
NEWEST = "SELECT max(event_date) AS newest, any_value(n) AS n FROM per_day -- the last one"


def shop(folder: Path, views: str = VIEWS, **sql: str) -> Catalog:
    files = {"gold/daily.sql": SQL, "reference/splits.csv": SPLITS}
    files |= {f"views/{name}.sql": text for name, text in ({"per_day": PER_DAY, "newest": NEWEST} | sql).items()}
    return project(folder, sql=files, shop=SHOP + ORDERS + GOLD + REFERENCES + views)


def filled(catalog: Catalog) -> Catalog:
    make(Lake(catalog.environment.lake), "shop", "orders", files=1, days=2)
    refresh_references(catalog, "shop")
    return catalog


def test_a_view_reads_tables_references_and_other_views(tmp_path: Path) -> None:
    connection, names = connect(filled(shop(tmp_path)))

    assert {"shop.splits", "shop.per_day", "shop.newest"} <= {*names}
    assert connection.execute("SELECT n FROM shop.per_day ORDER BY event_date").fetchall() == [(30,), (30,)]
    assert connection.execute("SELECT newest::VARCHAR FROM shop.newest").fetchone() == ("2026-01-02",)


def test_views_of_missing_tables_are_skipped(tmp_path: Path) -> None:
    _, names = connect(shop(tmp_path))

    assert not {"shop.per_day", "shop.newest"} & {*names}


def test_an_invalid_view_raises_its_error_and_affects_no_other(tmp_path: Path) -> None:
    connection, _ = connect(filled(shop(tmp_path, newest="SELECT it's FROM per_day")))

    assert connection.execute("SELECT count(*) FROM shop.per_day").fetchone() == (2,)
    with pytest.raises(duckdb.Error, match=r"newest\.sql"):
        connection.execute("SELECT * FROM shop.newest").fetchall()


@pytest.mark.parametrize("sql", ["COPY orders TO 'x'", "DELETE FROM orders", "SELECT 1); DROP VIEW shop.splits; --"])
def test_a_view_that_would_write_does_not_run(tmp_path: Path, sql: str) -> None:
    connection, _ = connect(filled(shop(tmp_path, newest=sql)))

    with pytest.raises(duckdb.Error):
        connection.execute("SELECT * FROM shop.newest").fetchall()
    assert connection.execute("SELECT count(*) FROM shop.splits").fetchone() == (3,)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT n,\nevent_dat FROM per_day",
            "newest.sql:2: there is no column 'event_dat' in per_day; did you mean 'event_da",
        ),
        ("SELECT event_date\nFROM orders", "newest.sql:2: orders is not in `reads`: add it"),
        (
            "SELECT n\nFROM per_dya",
            "newest.sql:2: there is no table 'per_dya' in this pipeline; did you mean 'per_day'?",
        ),
        ("DELETE FROM per_day", "newest.sql:1: write one SELECT and nothing else"),
        ("COPY per_day TO 'x'", "newest.sql:1: write one SELECT and nothing else"),
        ("SELECT 1; DROP TABLE per_day", "newest.sql:1: write one SELECT and nothing else"),
        ("SELECT n INTO kept\nFROM per_day", "newest.sql:1: INTO is not allowed: views and panels only read"),
        ("SELECT n FROM per_day WHERE", "newest.sql:1: invalid SQL"),
        ("SELECT n FROM per_day QUALIFY row_number() OVER (ORDER BY n) = 1", ""),
    ],
)
def test_sql_of_views_is_parsed_as_duckdb_and_its_names_are_checked(tmp_path: Path, sql: str, expected: str) -> None:
    shop(tmp_path, newest=sql)

    mistakes = [str(mistake) for mistake in check_project("local", root=tmp_path / "project").errors]

    assert len(mistakes) == bool(expected), mistakes
    assert all(f"views/{expected}" in mistake for mistake in mistakes)
    assert all(
        "DuckDB's dialect" in mistake for mistake in mistakes if "reads`" not in mistake and "table" not in mistake
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("reads: [orders, splits]", "reads: [newest]"), "views form a cycle: "),
        (("reads: [per_day]", "reads: [per_dy]"), "reads unknown table or view 'per_dy'; did you mean 'per_day'?"),
        (("name: newest", "name: orders"), "table orders is declared twice"),
        (("views/newest.sql", "views/newst.sql"), "did you mean 'views/newest.sql'?"),
    ],
)
def test_invalid_views_are_rejected(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shop(tmp_path, VIEWS.replace(*change))

    assert said in refused.value.message
