"""Specs of dashboards: required columns of panels, bounded SQL and known names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.checks.sql_files import QueryCache
from deltaworks.specs.dashboards import MAX_PANELS
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from tests.unit.dashboards.dashboard_harness import ERRORS, ERRORS_SQL, shop

SPARKLINE = "{title: Errors, chart: number, x: minute, y: errors, unit: percent, sql: panels/errors.sql}"


def reported_errors(folder: Path) -> list[str]:
    return [str(spec_error) for spec_error in check_project("local", root=folder / "project").errors]


def rejection(folder: Path, *panels: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as error:
        shop(folder, *panels, more=more)
    return error.value.message


def test_a_dashboard_is_read_with_its_panels(tmp_path: Path) -> None:
    (dashboard,) = shop(tmp_path, ERRORS, SPARKLINE, more="    hours: 6\n").pipelines["shop"].dashboards

    assert (dashboard.name, dashboard.refresh_seconds, dashboard.hours) == ("noc", 30, 6)
    assert [(panel.chart, panel.y, panel.by) for panel in dashboard.panels] == [
        ("area", ("errors",), "class"),
        ("number", ("errors",), None),
    ]
    assert reported_errors(tmp_path) == []


def test_a_page_has_at_most_twenty_panels(tmp_path: Path) -> None:
    shop(tmp_path, *[ERRORS] * MAX_PANELS)

    assert "project/include/pipelines/shop/pipeline.yaml" in rejection(tmp_path, *[ERRORS] * (MAX_PANELS + 1))
    assert MAX_PANELS == 20
    (messages,) = reported_errors(tmp_path)
    assert "dashboards.0.panels: write 20 at most here" in messages


@pytest.mark.parametrize(
    ("panel", "messages"),
    [
        (ERRORS.replace("area", "aera"), "instead of 'aera'; did you mean 'area'?"),
        (ERRORS.replace("x: minute, ", ""), "the chart area needs x, a column of its result"),
        (ERRORS.replace("y: errors, ", ""), "the chart area needs y"),
        (ERRORS.replace("y: errors", "y: [errors, minute]"), "y: a panel with `by` has one y"),
        (SPARKLINE.replace("number", "table"), "the chart table has no x; it supports none: all columns are shown"),
        (SPARKLINE.replace("number", "histogram").replace("x: minute, ", ""), "the chart histogram needs x"),
        (SPARKLINE.replace("y: errors", "y: errors, by: class"), "the chart number has no by; it supports y, x"),
        (ERRORS.replace("by: class", "per: class"), "unknown key 'per'"),
        (
            ERRORS.replace("errors.sql", "erors.sql"),
            "panel 'Errors by type' refers to panels/erors.sql, which does not exist in its",
        ),
        (ERRORS.replace("panels/errors.sql", "../../environments/local.yaml"), "outside its folder"),
        (SPARKLINE.replace("percent", "percents"), "did you mean 'percent'?"),
    ],
)
def test_an_invalid_panel_is_rejected(tmp_path: Path, panel: str, messages: str) -> None:
    message = rejection(tmp_path, ERRORS, panel)

    assert messages in message
    assert "dashboards.0.panels.1" in message


FILTERED_SQL = ERRORS_SQL.replace("ORDER", "AND ($class IS NULL OR class = $class)\nORDER")
CHOICES_SQL = "SELECT DISTINCT 'class' AS filter, class AS value FROM errors_minute WHERE minute >= $from"
FILTERED = "    filters: [class]\n    choices: panels/choices.sql\n"
RULE = """\
rules:
  - {name: errors_high, reads: [errors_minute], sql: panels/rule.sql, fire: {above: 5}, for_minutes: 5}
"""
RULE_SQL = (
    "SELECT minute, sum(errors)::DOUBLE AS value, 1000 AS samples FROM errors_minute "
    "WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to GROUP BY minute"
)


def test_filters_are_parameters_of_panels(tmp_path: Path) -> None:
    segments = "    segments: [{name: Rights, filters: {class: drm}}]\n"
    catalog = shop(tmp_path, more=FILTERED + segments, errors=FILTERED_SQL, choices=CHOICES_SQL)
    (dashboard,) = catalog.pipelines["shop"].dashboards

    assert (dashboard.filters, dashboard.segments[0].filters) == (("class",), {"class": "drm"})
    assert reported_errors(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "sql", "choices", "message"),
    [
        (FILTERED, ERRORS_SQL, CHOICES_SQL, "filters.0: no panel is filtered by class"),
        (
            FILTERED,
            FILTERED_SQL.replace("$class", "$clas"),
            CHOICES_SQL,
            "there is no parameter $clas; did you mean $class",
        ),
        ("", FILTERED_SQL, CHOICES_SQL, "there is no parameter $class"),
        (FILTERED, FILTERED_SQL, CHOICES_SQL.replace("AS value", "AS text"), "not filter and value"),
        (FILTERED, FILTERED_SQL, CHOICES_SQL.replace("WHERE minute >= $from", ""), "it has no $from"),
    ],
)
def test_filters_that_do_not_fit_are_reported(tmp_path: Path, more: str, sql: str, choices: str, message: str) -> None:
    shop(tmp_path, more=more, errors=sql, choices=choices)

    listed = reported_errors(tmp_path)

    assert listed
    assert all(message in error or "no panel is filtered" in error for error in listed), listed
    assert any(message in error for error in listed), listed


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("    filters: [class]\n", "filters and choices are declared together"),
        (FILTERED.replace("[class]", "[from]"), "from is a parameter of the page already"),
        (FILTERED + "    segments: [{name: a, filters: {clas: x}}]\n", "there is no filter clas; did you mean class?"),
    ],
)
def test_invalid_filters_are_rejected(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        shop(tmp_path, more=more, choices=CHOICES_SQL)


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        ("{title: A, chart: line, rule: errors_hihg}", "there is no rule errors_hihg; did you mean errors_high?"),
        ("{title: A, chart: area, rule: errors_high}", "the values of a rule are drawn as a line, not as area"),
        ("{title: A, chart: line, rule: errors_high, x: minute}", "a panel with a rule has no x"),
        ("{title: A, chart: line, x: minute, y: errors}", "give a file of the pipeline's folder"),
        (
            "{title: A, chart: line, x: minute, y: errors, band: low, sql: panels/errors.sql}",
            "a band has two columns: its lower and its upper edge",
        ),
        (ERRORS.replace("by: class", "band: [low, high]"), "the chart area has no band"),
    ],
)
def test_panels_of_rules_and_bands_are_checked(tmp_path: Path, panel: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        shop(tmp_path, panel, views=RULE, rule=RULE_SQL)


def test_dashboard_names_are_unique(tmp_path: Path) -> None:
    repeated = f"    panels: [{ERRORS}]\n  - name: noc\n"

    assert "dashboards.1.name: dashboard noc is declared twice" in rejection(tmp_path, more=repeated)


@pytest.mark.parametrize(
    ("sql", "messages"),
    [
        (ERRORS_SQL, ""),
        ("WITH a AS (SELECT * FROM errors_minute WHERE minute >= $from) SELECT minute, class, errors FROM a", ""),
        ("SELECT minute, class, errors FROM errors_minute AS e JOIN (SELECT 1) AS o ON e.minute >= $from", ""),
        (
            "SELECT minute, class, errors\nFROM errors_minute -- since $from",
            "errors.sql:1: it reads the complete table",
        ),
        ("SELECT minute, class, errors\nFROM errors_minute WHERE class <> '$from'", "it has no $from"),
        (
            "SELECT minute, class,\ncount(*) FILTER (WHERE minute >= $from) AS errors\nFROM errors_minute GROUP BY ALL",
            "errors.sql:2: $from filters no rows: it is in no WHERE and no JOIN",
        ),
        ("SELECT minute, class, errors, $from AS since FROM errors_minute", "$from filters no rows"),
        (ERRORS_SQL.replace("$to", "$too"), "errors.sql:3: there is no parameter $too; did you mean $to?"),
        (ERRORS_SQL.replace("$to", "?"), "errors.sql:3: only the named parameters $from and $to are supported"),
        (
            ERRORS_SQL.replace("errors\n", "erors\n", 1),
            "errors.sql:1: there is no column 'erors' in errors_minute; did you mean 'errors'?",
        ),
        (
            ERRORS_SQL.replace("FROM errors_minute", "FROM error_minute"),
            "errors.sql:2: there is no table 'error_minute' in this pipeline; did you mean 'errors_minute'?",
        ),
        ("DELETE FROM errors_minute WHERE minute >= $from", "errors.sql:1: write one SELECT and nothing else"),
        (f"{ERRORS_SQL}; {ERRORS_SQL}", "write one SELECT and nothing else"),
        (
            ERRORS_SQL.replace("class,", "class AS kind,"),
            "panels.0.by: the result of panels/errors.sql has no column 'class'; its columns are minute, kind, errors",
        ),
    ],
)
def test_panel_sql_is_bounded_and_has_known_names(tmp_path: Path, sql: str, messages: str) -> None:
    shop(tmp_path, errors=sql)

    listed = reported_errors(tmp_path)

    assert len(listed) == bool(messages), listed
    assert all(messages in spec_error for spec_error in listed)


def test_a_valid_view_query_is_not_cached_for_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are remembered where they are right, so that the parser is not loaded again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    unbounded = "SELECT minute, class, errors FROM errors_minute"
    views = "views:\n  - {name: all_errors, reads: [errors_minute], sql: panels/errors.sql}\n"
    shop(tmp_path, views=views, errors=unbounded)

    first, second = reported_errors(tmp_path), reported_errors(tmp_path)

    assert len(first) == 1
    assert "it has no $from" in first[0]
    assert second == first


def test_a_valid_query_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shop(tmp_path)
    assert reported_errors(tmp_path) == []
    monkeypatch.setattr(QueryCache, "put", lambda *_: pytest.fail("it was not cached"))

    assert reported_errors(tmp_path) == []


def test_a_dashboard_does_not_change_a_stream(tmp_path: Path) -> None:
    before = shop(tmp_path / "a").pipelines["shop"]
    after = shop(tmp_path / "b", SPARKLINE).pipelines["shop"]

    (change,) = classify_changes(before, after)

    assert change.effect is Effect.SAFE
