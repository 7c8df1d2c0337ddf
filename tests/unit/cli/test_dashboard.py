"""`deltaworks dashboard`: the HTML page, and the printed state of panels."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import dashboard
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog
from tests.commands import invoke
from tests.unit.dashboards.dashboard_harness import ERRORS, errors, put, shop

WRONG = "{title: Wrong, chart: table, sql: panels/wrong.sql}"
TIMES = ("--from", "2026-03-01", "--to", "2026-03-01T10:10")
run = partial(invoke, "dashboard", columns=300)


def use(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> Catalog:
    monkeypatch.setattr(dashboard, "catalog", lambda: catalog)
    return catalog


def test_a_page_is_written_to_the_given_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(use(monkeypatch, shop(tmp_path)), "errors_minute", errors())
    file = tmp_path / "pages" / "noc.html"

    shown = run("shop", "noc", "--html", str(file), *TIMES)

    assert shown.exit_code == 0, shown.output
    assert "Errors by type" in shown.output
    assert str(file) in shown.output
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "2026-03-01 00:00" in page
    assert "data to 2026-03-01 10:29" in page


def test_the_state_of_the_panels_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "SELECT no_such(errors) AS n FROM errors_minute WHERE minute >= $from"
    put(use(monkeypatch, shop(tmp_path, WRONG, ERRORS, wrong=wrong)), "errors_minute", errors())

    shown = run("shop", "noc", "--json", *TIMES)

    assert shown.exit_code == 1
    failed, right = json.loads(shown.stdout)
    assert failed["state"].startswith("failed: ")
    assert (right["rows"], right["state"], right["data_to"]) == (20, "ok", "2026-03-01T10:29:00+00:00")


def test_a_missing_table_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, shop(tmp_path))

    shown = run("shop", "noc")

    assert shown.exit_code == 0
    assert "errors_minute does not exist yet: `deltaworks gold build shop --tables errors_minute`" in shown.output


def test_dashboards_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, shop(tmp_path, ERRORS, ERRORS))

    (listed,) = json.loads(run("shop", "--json").stdout)

    assert (listed["dashboard"], listed["panels"]) == ("noc", 2)


@pytest.mark.parametrize(
    ("words", "condition"),
    [
        (("shop", "nok"), "DASHBOARD_UNKNOWN"),
        (("ship", "noc"), "PIPELINE_UNKNOWN"),
        (("shop", "noc", "--from", "yesterday"), "DASHBOARD_SPAN_INVALID"),
        (("shop", "noc", "--from", "2026-03-02", "--to", "2026-03-01"), "DASHBOARD_SPAN_INVALID"),
        (("shop", "noc", "--from", "2999-01-01"), "DASHBOARD_SPAN_INVALID"),
        (("shop", "noc", "--to", "0001-01-01T01:00"), "DASHBOARD_SPAN_INVALID"),
    ],
)
def test_unknown_dashboards_and_times_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], condition: str
) -> None:
    use(monkeypatch, shop(tmp_path))

    error = run(*words).exception

    assert isinstance(error, ConfigError)
    assert error.condition == condition
