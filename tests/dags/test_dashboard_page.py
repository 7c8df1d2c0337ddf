"""Dashboards in Airflow's real API server: access, render frequency, and queries outside the server's process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from deltaworks.console.pages import dashboards as dashboard_pages
from deltaworks.console.table_reads import TableReadResult
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import write_project
from tests.dags.test_console_host import as_user, dags_on_record, server
from tests.unit.dashboards.dashboard_harness import START, put
from tests.waiting import eventually

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
    """Records the dashboards that child processes render for a console in this process."""
    monkeypatch.setenv("DELTAWORKS_CONSOLE_PROCESS", "off")
    asked_for: list[str] = []
    read_tables = dashboard_pages.read_tables

    def counted(read: str, **options: Any) -> TableReadResult:
        asked_for.append(options["name"])
        return read_tables(read, **options)

    with patch.object(dashboard_pages, "read_tables", counted):
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
    assert 'href="../../dashboards"' in page.text
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
    assert [answer.status_code for answer in answers_of] == [404, 404, 404]
    assert not any("Operations" in answer.text for answer in answers_of)
    assert rendered == []


def test_a_page_is_rendered_once_per_refresh_interval(server: Any, dashboards: Path, rendered: list[str]) -> None:
    declaration = dashboards / "include" / "pipelines" / "games" / "pipeline.yaml"
    declaration.write_text(declaration.read_text().replace("title: Operations", "title: Shared"))

    pages = [server.get(PAGE, headers=as_user(name, role)).text for name, role in (("vic", "viewer"), ("ada", "admin"))]
    assert pages[0] == pages[1]
    assert rendered == ["noc"]

    # Another declaration is rendered once it is read, within seconds, and another time span immediately.
    declaration.write_text(declaration.read_text().replace("title: Shared", "title: Other"))
    eventually(lambda: "Other" in server.get(PAGE, headers=viewer()).text, "the new declaration is shown")
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


def test_the_api_server_loads_neither_duckdb_nor_arrow(dags_on_record: None, dashboards: Path) -> None:
    from tests.dags.airflow_project import run_python

    program = f"""
import json, os, sys
from airflow.api_fastapi.app import create_app
from tests.dags.console_client import ConsoleClient
loaded = []
with ConsoleClient(create_app(apps="core")) as client:
    for renderer in ("on", "off"):
        os.environ["DELTAWORKS_CONSOLE_PROCESS"] = renderer
        for plugin in [module for name, module in sys.modules.items() if name.endswith("deltaworks_plugin")]:
            plugin.DeltaworksPlugin.fastapi_apps[0]["app"]._application = None
        pages = [client.get(page, headers={viewer()!r}) for page in ({LIST!r}, {PAGE!r})]
        assert all("Operations" in page.text for page in pages), [page.text for page in pages]
        loaded.append([name for name in ("duckdb", "pyarrow", "deltalake") if name in sys.modules])
print(json.dumps(loaded))
"""
    assert run_python(program, dashboards) == [[], []]
