"""Dashboards in Airflow's real API server: access and render frequency."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from deltaworks.operations import dashboard_data as drawing
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import write_project
from tests.dags.test_console_host import as_user, dags_on_record, server
from tests.unit.dashboards.dashboard_harness import START, put

__all__ = ["dags_on_record", "server"]

LIST = "/deltaworks/dashboards"
PAGE = "/deltaworks/dashboards/games/noc"
DASHBOARDS = """\
dashboards:
  - name: noc
    title: Operations
    refresh_seconds: 30
    panels:
      - {title: Events by hour, chart: bar, x: hour, y: n, sql: panels/events.sql}
"""
SQL = "SELECT hour, n FROM events_per_hour WHERE hour >= $from AND hour < $to"
SPAN = "?from=2026-03-01&to=2026-03-02"


@pytest.fixture
def dashboards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample project with a dashboard, and a gold table of one hour."""
    root = write_project(tmp_path / "project")
    folder = root / "include" / "pipelines" / "games"
    (folder / "panels").mkdir()
    (folder / "panels" / "events.sql").write_text(SQL)
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text() + DASHBOARDS)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    put(load_catalog(), "events_per_hour", [{"hour": START, "n": 7, "event_date": START.date()}], "games")
    return root


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Records rendered dashboards; the page cache is reset."""
    asked_for: list[str] = []
    answer_dashboard = drawing.answer_dashboard

    def counted(catalog: Any, pipeline: str, dashboard: Any, span: Any, **options: Any) -> Any:
        asked_for.append(dashboard.name)
        return answer_dashboard(catalog, pipeline, dashboard, span, **options)

    with patch.object(drawing, "answer_dashboard", counted):
        yield asked_for


def viewer() -> dict[str, str]:
    return as_user("vic", "viewer")


@pytest.mark.parametrize("page", [LIST, PAGE, f"{PAGE}{SPAN}", "/deltaworks/dashboards/unknown/unknown"])
def test_a_dashboard_needs_a_login(server: Any, dashboards: Path, page: str) -> None:
    assert server.get(page).status_code == 401
    assert server.get(page, headers={"Authorization": "Bearer forged"}).status_code == 403


def test_readers_of_the_stream_dag_see_its_dashboards(server: Any, dashboards: Path) -> None:
    listed, page = server.get(LIST, headers=viewer()), server.get(f"{PAGE}{SPAN}", headers=viewer())

    assert f'href="{PAGE}"' in listed.text
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "refresh" not in page.text
    assert '<meta http-equiv="refresh" content="30">' in server.get(PAGE, headers=viewer()).text
    assert "data to 2026-03-01 10:00" in page.text
    assert "This panel failed" not in page.text
    assert f'href="{LIST}"' in page.text
    # Its own policy lets no script run.
    assert not re.search(r"<script|javascript:|\son\w+=", page.text)


def test_other_users_see_no_dashboard_and_cause_no_query(server: Any, dashboards: Path, rendered: list[str]) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def only_others(*, details: Any, **_: Any) -> bool:
        return details is None or details.id != "games__stream"

    with patch.object(type(get_auth_manager()), "is_authorized_dag", staticmethod(only_others)):
        listed = server.get(LIST, headers=viewer())
        answers_of = [server.get(page, headers=viewer()) for page in (PAGE, f"{PAGE}{SPAN}", f"{PAGE}x")]

    assert "noc" not in listed.text
    assert [answer.status_code for answer in answers_of] == [403, 403, 403]
    assert not any("Operations" in answer.text for answer in answers_of)
    assert rendered == []


def test_a_page_is_rendered_once_per_refresh_interval(server: Any, dashboards: Path, rendered: list[str]) -> None:
    declaration = dashboards / "include" / "pipelines" / "games" / "pipeline.yaml"
    declaration.write_text(declaration.read_text().replace("title: Operations", "title: Shared"))

    pages = [server.get(PAGE, headers=as_user(name, role)).text for name, role in (("vic", "viewer"), ("ada", "admin"))]
    assert pages[0] == pages[1]
    assert rendered == ["noc"]

    # Another declaration or time span is rendered immediately.
    declaration.write_text(declaration.read_text().replace("title: Shared", "title: Other"))
    assert "Other" in server.get(PAGE, headers=viewer()).text
    server.get(f"{PAGE}{SPAN}", headers=viewer())
    server.get(f"{PAGE}{SPAN}", headers=viewer())
    assert rendered == ["noc"] * 4


@pytest.mark.parametrize(
    ("page", "status"),
    [
        (f"{PAGE}x", 404),
        ("/deltaworks/dashboards/edits/noc", 404),
        (f"{PAGE}?from=yesterday", 400),
        (f"{PAGE}?from=2026-03-02&to=2026-03-01", 400),
        (f"{PAGE}?from=%3Cscript%3E", 400),
    ],
)
def test_unknown_dashboards_and_times_are_rejected(server: Any, dashboards: Path, page: str, status: int) -> None:
    answer = server.get(page, headers=viewer())

    assert answer.status_code == status
    assert "application/json" in answer.headers["content-type"]


def test_a_plugin_loads_neither_duckdb_nor_arrow(dashboards: Path) -> None:
    from tests.dags.airflow_project import run_python

    program = (
        "import json, sys; from deltaworks.airflow import console_host; console_host.build_host();"
        "print(json.dumps([name for name in ('duckdb', 'pyarrow', 'deltalake') if name in sys.modules]))"
    )

    assert run_python(program, dashboards) == []
