"""Streams of widgets in Airflow's real API server: who may read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fastapi import Response

from deltaworks.console import widget_streams
from tests.dags.airflow_project import write_project
from tests.dags.test_console_host import as_user, dags_on_record, server

__all__ = ["dags_on_record", "server"]

PAGE = "/deltaworks/widgets/games/popular"
EVENTS = f"{PAGE}/events"
VIEWS = """\
views:
  - {name: popular, sql: popular.sql, reads: [events], widget: {}}
  - {name: internal, sql: popular.sql, reads: [events]}
"""


@pytest.fixture(autouse=True)
def widgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sample project with a widget, whose streams end immediately: those of a server have no end."""
    root = write_project(tmp_path / "project")
    folder = root / "include" / "pipelines" / "games"
    (folder / "popular.sql").write_text("SELECT event_name, count(*) AS n FROM events GROUP BY event_name")
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text() + VIEWS)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    with patch.object(widget_streams, "EventStream", lambda *_, **__: Response("opened")):
        yield


def test_a_viewer_of_the_pipeline_reads_its_widgets(server: Any) -> None:
    viewer = as_user("vic", "viewer")

    assert server.get(EVENTS, headers=viewer).text == "opened"
    assert f'data-events="{EVENTS}"' in server.get(PAGE, headers=viewer).text
    assert server.get("/deltaworks/widgets/games/internal/events", headers=viewer).status_code == 404


def test_a_stream_needs_a_login(server: Any) -> None:
    assert server.get(EVENTS).status_code == 401
    assert server.get(EVENTS, headers={"Authorization": "Bearer forged"}).status_code == 403


def test_a_stream_needs_the_right_to_its_pipeline(server: Any) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def only_others(*, details: Any, **_: Any) -> bool:
        return details is None or details.id != "games__stream"

    with patch.object(type(get_auth_manager()), "is_authorized_dag", staticmethod(only_others)):
        answers = [server.get(address, headers=as_user("vic", "viewer")) for address in (EVENTS, PAGE)]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert not any("opened" in answer.text for answer in answers)
