"""Panels run bounded queries, report the age of their data, and fail independently."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.charts.drawing import Span
from deltaworks.control import paths
from deltaworks.dashboards import answers
from deltaworks.dashboards.answers import QueryLimits
from tests.unit.dashboards.dashboard_harness import ERRORS, MINUTES, SPAN, START, answered, errors, put, shop
from tests.unit.specs.test_dashboards import CHOICES_SQL, FILTERED, FILTERED_SQL

BOUND = "FROM errors_minute WHERE minute >= $from"


def number(name: str) -> str:
    return f"{{title: {name}, chart: number, y: n, sql: panels/{name}.sql}}"


def test_a_panel_has_the_rows_of_its_span_and_the_age_of_its_data(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    put(catalog, "errors_minute", errors())
    half = Span(SPAN.since, START + dt.timedelta(minutes=10))

    (whole,), (part,) = answered(catalog).panels, answered(catalog, span=half).panels

    assert not whole.problem
    assert whole.columns == ("minute", "class", "errors")
    assert len(whole.rows) == 2 * MINUTES
    assert len(part.rows) == 20
    # The age is the table's, independent of the span.
    assert part.newest_at == whole.newest_at == START + dt.timedelta(minutes=MINUTES - 1)
    assert [age.table for age in whole.ages] == ["errors_minute"]


def test_a_panel_over_a_view_has_the_age_of_its_tables(tmp_path: Path) -> None:
    catalog = shop(
        tmp_path,
        number("peak"),
        views="views:\n  - {name: rates, reads: [errors_minute], sql: panels/rates.sql}\n",
        rates="SELECT minute, sum(errors) AS n FROM errors_minute GROUP BY minute",
        peak="WITH newest AS (SELECT n FROM rates WHERE minute >= $from) SELECT max(n) AS n FROM newest",
    )
    put(catalog, "errors_minute", errors())

    (panel,) = answered(catalog).panels

    assert not panel.problem
    assert panel.rows == ((2 * (MINUTES - 1) + 3,),)
    assert [age.table for age in panel.ages] == ["errors_minute"]


@pytest.mark.parametrize("value", ["drm", "x' OR true --", None])
def test_a_filter_is_a_bound_parameter(tmp_path: Path, value: str | None) -> None:
    catalog = shop(tmp_path, more=FILTERED, errors=FILTERED_SQL, choices=CHOICES_SQL)
    put(catalog, "errors_minute", errors())
    (dashboard,) = catalog.pipelines["shop"].dashboards
    filters = {} if value is None else {"class": value}

    answer = answers.answer_dashboard(catalog, "shop", dashboard, SPAN, filters=filters)

    (panel,) = answer.panels
    assert not panel.problem
    assert {row[1] for row in panel.rows} == {None: {"network", "drm"}, "drm": {"drm"}}.get(value, set())
    assert answer.choices == {"class": ("drm", "network")}


def test_a_missing_table_is_not_a_failure(tmp_path: Path) -> None:
    (panel,) = answered(shop(tmp_path)).panels

    assert (panel.missing_tables, panel.problem, panel.rows) == (("errors_minute",), "", ())


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (f"SELECT 'x'::INT AS n {BOUND}", "Could not convert string 'x' to INT32"),
        (f"SELECT no_such(errors) AS n {BOUND}", "no_such"),
        (f"SELECT errors AS other {BOUND}", "returns no column 'n'"),
        ("SELECT n FROM nowhere WHERE n >= $from", "nowhere"),
        (f"SELECT n {BOUND} AND minute < $until", "until"),
        ("DROP TABLE errors_minute", "one SELECT and nothing else"),
        ("SELECT 1 AS n); DROP VIEW shop.errors_minute; --", ""),
        (f"SELECT 1 AS n {BOUND}; SELECT 2 AS n", "one SELECT and nothing else"),
        (f"SELECT max(content) AS n FROM read_text('/etc/hostname') WHERE now() >= $from -- {BOUND}", "disabled"),
        (f"SELECT list(range) AS n FROM range(1000000000) WHERE now() >= $from -- {BOUND}", "Out of Memory"),
    ],
)
def test_a_failing_panel_shows_its_error_and_others_run(tmp_path: Path, sql: str, said: str) -> None:
    catalog = shop(
        tmp_path, number("wrong"), ERRORS, number("right"), wrong=sql, right=f"SELECT max(errors) AS n {BOUND}"
    )
    put(catalog, "errors_minute", errors())

    wrong, chart, right = answered(catalog, bounds=QueryLimits(memory_mib=64, threads=1)).panels

    assert said in wrong.problem
    assert wrong.problem
    assert not wrong.rows
    assert len(chart.rows) == 2 * MINUTES
    assert right.rows == ((MINUTES + 1,),)


def test_a_slow_panel_times_out_and_others_run(tmp_path: Path) -> None:
    # Slow but small: memory is limited too.
    endless = "SELECT sum(sin(range)) AS n FROM range(1000000000000) WHERE now() >= $from"
    catalog = shop(tmp_path, number("endless"), ERRORS, endless=endless)
    put(catalog, "errors_minute", errors())

    ended, chart = answered(catalog, bounds=QueryLimits(panel_seconds=0.5)).panels

    assert ended.problem == "the query timed out after 0 s"
    assert ended.seconds < 10
    assert len(chart.rows) == 2 * MINUTES


def test_panels_are_skipped_after_the_page_timeout(tmp_path: Path) -> None:
    catalog = shop(tmp_path, ERRORS, ERRORS.replace("Errors by type", "Again"))
    put(catalog, "errors_minute", errors())

    panels = answered(catalog, bounds=QueryLimits(page_seconds=0)).panels

    assert [panel.problem for panel in panels] == ["skipped: the page took 0 s"] * 2


def test_rows_beyond_the_limit_are_truncated(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    put(catalog, "errors_minute", errors())

    (bounded,) = answered(catalog, bounds=QueryLimits(max_rows=7)).panels
    (exact,) = answered(catalog, bounds=QueryLimits(max_rows=2 * MINUTES)).panels

    assert (len(bounded.rows), bounded.is_truncated) == (7, True)
    assert (len(exact.rows), exact.is_truncated) == (2 * MINUTES, False)
    # In query order, so the end is truncated.
    assert bounded.rows[0][0] == START


def test_an_unreadable_table_fails_only_its_panels(tmp_path: Path) -> None:
    catalog = shop(
        tmp_path, number("orders"), ERRORS, orders="SELECT count(*) AS n FROM orders WHERE event_time >= $from"
    )
    put(catalog, "errors_minute", errors())
    put(catalog, "orders", [{"event_time": START, "id": "a"}])
    root = tmp_path / "lake" / paths.table("shop", "orders")
    (root / "_delta_log" / f"{0:020d}.json").write_text("{this is no commit")

    broken, chart = answered(catalog).panels

    assert broken.problem
    assert len(chart.rows) == 2 * MINUTES


def test_a_panel_beyond_the_memory_limit_fails_without_spilling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_rows = (
        "SELECT max(n) AS n FROM (SELECT range AS n, hash(range) AS h FROM range(8000000) ORDER BY h LIMIT 7000000)"
    )
    catalog = shop(tmp_path, number("large"), ERRORS, large=f"{sorted_rows} WHERE now() >= $from")
    put(catalog, "errors_minute", errors())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)

    large, chart = answered(catalog, bounds=QueryLimits(memory_mib=64, threads=1)).panels

    assert "Out of Memory" in large.problem
    assert list(folder.iterdir()) == []
    assert len(chart.rows) == 2 * MINUTES


@pytest.mark.parametrize("end", [";", " -- done", ";\n; -- done;\n", " /* ; */ ;"])
def test_a_statement_may_end_in_any_way(tmp_path: Path, end: str) -> None:
    catalog = shop(tmp_path, number("last"), last=f"SELECT ';' AS mark, max(errors) AS n {BOUND}{end}")
    put(catalog, "errors_minute", errors())

    (panel,) = answered(catalog).panels

    assert panel.rows == ((";", MINUTES + 1),), panel.problem


def test_tables_are_opened_once_for_all_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = shop(tmp_path, ERRORS, *(ERRORS.replace("Errors by type", f"Panel {place}") for place in range(4)))
    put(catalog, "errors_minute", errors())
    statements: list[str] = []
    connect = answers.connect

    def counted(catalog: object, *, statement: str) -> object:
        statements.append(statement)
        return connect(catalog, statement=statement)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "connect", counted)

    assert all(len(panel.rows) == 2 * MINUTES for panel in answered(catalog).panels)
    assert statements == ["errors_minute"]
