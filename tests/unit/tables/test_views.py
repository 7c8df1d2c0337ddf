"""Views: SQL that a pipeline keeps, over its tables and over other views."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from deltaworks.errors import ConfigError
from deltaworks.gold.references import refresh_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.checks.project import check_project
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from tests.unit.gold.test_references import GOLD, REFERENCES, SPLITS, SQL
from tests.unit.maintenance.table_data import ORDERS, SHOP, make, project

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
