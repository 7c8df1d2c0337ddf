"""The plugin in Airflow's real API server: the progress page, who may see it, and the links on tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog

PAGES = ("/deltaworks/progress", "/deltaworks/progress/stream__games", "/deltaworks/progress/relay__landing")


def write_heartbeat(name: str, **changes: Any) -> None:
    beat = Heartbeat(
        pipeline=name,
        owner="o",
        epoch=1,
        run=f"stream__{name}/r/ingest/1",
        state="running",
        written_at=iso_now(),
        started_at=iso_now(),
        trigger_seconds=60,
        batch_id=41,
        backlog_files=0,
    )
    objects = open_objects(load_catalog().environment.lake)
    record = json.dumps(dataclasses.asdict(dataclasses.replace(beat, **changes))).encode()
    objects.put(paths.pipeline_control(name, "heartbeat.json"), record)


@pytest.fixture(scope="module")
def server(airflow_database: None) -> Iterator[Any]:
    """Airflow's API server with the plugins folder of this project."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with TestClient(create_app(apps="core"), raise_server_exceptions=True) as client:
        yield client


def as_user(name: str, role: str) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("page", [*PAGES, "/deltaworks/progress/unknown"])
def test_nobody_sees_a_page_without_logging_in(server: Any, project: Path, page: str) -> None:
    assert server.get(page).status_code == 401
    assert server.get(page, headers={"Authorization": "Bearer forged"}).status_code == 403


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("name", "role"), [("ada", "admin"), ("vic", "viewer")])
def test_who_may_read_dags_sees_their_progress(server: Any, project: Path, page: str, name: str, role: str) -> None:
    write_heartbeat("games")

    answer = server.get(page, headers=as_user(name, role))

    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_page_of_a_stream_shows_its_verdict_and_heartbeat(server: Any, project: Path) -> None:
    write_heartbeat("games", ui="http://driver.example:4040")

    html = server.get(PAGES[1], headers=as_user("vic", "viewer")).text
    record = server.get(PAGES[1] + "?format=json", headers=as_user("vic", "viewer")).json()

    assert "stream__games" in html
    assert 'href="http://driver.example:4040"' in html
    assert record[0]["verdict"]["state"] == "healthy"
    assert record[0]["heartbeat"]["batch_id"] == 41


def test_every_relay_and_stream_is_in_the_list(server: Any, project: Path) -> None:
    listed = server.get(PAGES[0] + "?format=json", headers=as_user("vic", "viewer")).json()

    assert [item["dag_id"] for item in listed] == ["relay__landing", "stream__edits", "stream__games"]


def test_the_page_says_where_no_alert_reaches_a_person(
    server: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTAWORKS_ALERTS_WEBHOOK", raising=False)
    without = server.get(PAGES[0], headers=as_user("vic", "viewer")).text
    monkeypatch.setenv("DELTAWORKS_ALERTS_WEBHOOK", "https://hooks.example.com/secret")
    with_one = server.get(PAGES[0], headers=as_user("vic", "viewer")).text

    assert "ALERTS_UNHEARD: no alert reaches a person" in without
    assert "ALERTS_UNHEARD" not in with_one
    assert "hooks.example.com" not in with_one


def test_what_a_driver_wrote_cannot_become_markup_or_script(server: Any, project: Path) -> None:
    error = {"condition": "X", "message": "<script>alert(1)</script>", "hint": "'\"><b>"}
    write_heartbeat("games", ui="javascript:alert(1)", error=error)

    html = server.get(PAGES[1], headers=as_user("vic", "viewer")).text

    assert "<script>" not in html
    assert "<b>" not in html
    assert 'href="javascript' not in html


def test_a_dag_that_runs_no_stream_has_no_page(server: Any, project: Path) -> None:
    answer = server.get("/deltaworks/progress/gold__games", headers=as_user("ada", "admin"))

    assert answer.status_code == 404


def test_a_stopped_stream_is_shown_as_stopped(server: Any, project: Path) -> None:
    write_heartbeat("edits", state="ended")
    flag = StopFlag(open_objects(load_catalog().environment.lake), paths.pipeline_control("edits", "stop.json"))
    flag.set(by="ada", reason="upgrade")

    listed = server.get(PAGES[0] + "?format=json", headers=as_user("vic", "viewer")).json()
    flag.clear()

    assert {item["dag_id"]: item["verdict"]["state"] for item in listed}["stream__edits"] == "stopped"


def test_a_tasks_links_are_computed_while_it_runs(airflow_database: None, project: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(dag_folder=str(Path(__file__).parents[2] / "dags"))
    run = "scheduled__2026-11-21T02:00:00+00:00"

    found = {}
    for dag_id, task_id in (("stream__games", "ingest"), ("gold__games", "rebuild_gold"), ("relay__landing", "relay")):
        dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags[dag_id]))
        task, key = dag.get_task(task_id), TaskInstanceKey(dag_id, task_id, run, 2, -1)
        links = {link: task.operator_extra_link_dict[link].get_link(task, ti_key=key) for link in task.extra_links}
        found[dag_id] = links

    assert sorted(found["stream__games"]) == ["Driver log", "Last progress", "Spark UI"]
    assert sorted(found["relay__landing"]) == ["Driver log", "Last progress"]
    assert found["stream__games"]["Last progress"] == "/deltaworks/progress/stream__games"
    assert found["gold__games"]["Last progress"] == "/deltaworks/progress/stream__games"
    assert found["relay__landing"]["Last progress"] == "/deltaworks/progress/relay__landing"
    expected_log = f"/dags/stream__games/runs/{quote(run, safe='')}/tasks/ingest?try_number=2"
    assert found["stream__games"]["Driver log"] == expected_log
    assert found["stream__games"]["Spark UI"] == ""
