"""The demo's page shows only what ran, and does not show unknown values as zero."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pytest

from sandbox.demo.answers import Answer
from sandbox.demo.html_report import write_report
from sandbox.demo.phases import Phase
from sandbox.demo.report import DemoReport

DAY = dt.date(2024, 3, 1)


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA games")
    connection.execute("CREATE TABLE games.daily_active_users AS SELECT DATE '2024-03-01' AS event_date, 3 AS users")
    connection.execute(
        "CREATE TABLE games.retention AS SELECT DATE '2024-03-01' AS cohort_date, 1234 AS installs,"
        " 0::BIGINT AS retained_day_1, NULL::BIGINT AS retained_day_7"
    )
    return connection


def page(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    report = DemoReport(
        answers=[Answer("games", "a <question>", 1_000, 999, False)],
        jobs=[("games__gold", 12.4)],
        phases=[Phase("ingest", 61.2, 80.7)],
        health="healthy",
    )
    tables = ["games.daily_active_users", "games.retention"]
    return write_report(connection, tables, report, folder).read_text()


def test_it_shows_answers_facts_and_seconds(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = page(connection, tmp_path)

    assert "a &lt;question&gt;" in text
    assert "<td class=n>1,000<td class=n>999<td class=no>WRONG" in text
    assert "run of games__gold" in text
    assert '<td>ingest</td><td class="n">61</td><td class="n">81</td>' in text


def test_what_is_not_known_yet_is_no_zero(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    row = '<td>2024-03-01</td><td class="n">1,234</td><td class="n">0</td><td class="n">not known yet</td>'
    assert row in page(connection, tmp_path)


def test_pipelines_that_did_not_run_are_not_there(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = page(connection, tmp_path)

    assert "Games: daily active users" in text
    assert "Wikipedia" not in text
    assert "Engagement" not in text
