"""The console in Airflow's real API server: who may see and start what, its places in Airflow, links on tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog
from tests.console_stage import write_beat

DAGS = ("stream__games", "stream__edits", "relay__landing", "stream_health", "gold__games", "somebody_elses")
#: What each address answers: to nobody, to a forged token, to a viewer, to an administrator.
ANSWERS = {
    "/deltaworks/": (303, 403, 200, 200),
    "/deltaworks/dag/stream__games": (303, 403, 200, 200),
    "/deltaworks/dag/relay__landing": (303, 403, 200, 200),
    "/deltaworks/dag/somebody_elses": (303, 403, 200, 200),
    "/deltaworks/dag/unknown": (303, 403, 404, 404),
}


@pytest.fixture(scope="module")
def dags_on_record(airflow_database: None) -> None:
    """DAGs as the metadata database has them once they are parsed."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        if session.get(DagBundleModel, "dags-folder") is None:
            session.add(DagBundleModel(name="dags-folder"))
            session.flush()
        for dag_id in DAGS:
            if session.get(DagModel, dag_id) is None:
                session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", fileloc="dags/x.py", is_paused=False))


@pytest.fixture(scope="module")
def server(dags_on_record: None) -> Iterator[Any]:
    """Airflow's API server with the plugins folder of this project."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with TestClient(create_app(apps="core"), raise_server_exceptions=True, follow_redirects=False) as client:
        yield client


def as_user(name: str, role: str) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    return {"Authorization": f"Bearer {token}"}


ADA, VIC = ("ada", "admin"), ("vic", "viewer")


@pytest.mark.parametrize("page", ANSWERS)
def test_who_is_answered_what(server: Any, project: Path, page: str) -> None:
    logins = ({}, {"Authorization": "Bearer forged"}, as_user(*VIC), as_user(*ADA))

    assert (
        tuple(server.get(page, headers={"Accept": "text/html", **login}).status_code for login in logins)
        == ANSWERS[page]
    )


def test_somebody_without_a_login_is_sent_to_airflows_and_comes_back(server: Any, project: Path) -> None:
    answer = server.get("/deltaworks/?only=games", headers={"Accept": "text/html"})

    assert answer.headers["location"].startswith("/auth/login?next=")
    assert quote("/deltaworks/?only=games", safe="") in answer.headers["location"]


def test_a_script_without_a_login_is_told_so(server: Any, project: Path) -> None:
    assert server.get("/deltaworks/?format=json").status_code == 401


def test_every_relay_and_stream_whose_dag_is_on_record_is_shown(server: Any, project: Path) -> None:
    objects = open_objects(load_catalog().environment.lake)
    write_beat(objects, paths.pipeline_control("games"), "games")
    shown = server.get("/deltaworks/?format=json", headers=as_user(*VIC)).json()["view"]

    assert [row["name"] for row in shown["streams"]] == ["edits", "games"]
    assert [row["name"] for row in shown["others"]] == ["landing"]
    assert {row["may_act"] for row in shown["streams"]} == {False}
    by_admin = server.get("/deltaworks/?format=json", headers=as_user(*ADA)).json()["view"]
    assert {row["may_act"] for row in by_admin["streams"]} == {True}


def test_a_dag_of_others_is_told_kindly_that_there_is_nothing(server: Any, project: Path) -> None:
    html = server.get("/deltaworks/dag/somebody_elses", headers={"Accept": "text/html", **as_user(*VIC)}).text

    assert "is no DAG of Deltaworks" in html


def test_airflow_takes_every_place_that_the_plugin_declares(server: Any, project: Path) -> None:
    listed = server.get("/api/v2/plugins", headers=as_user(*ADA)).json()["plugins"]
    (ours,) = [plugin for plugin in listed if plugin["name"] == "deltaworks"]

    assert {(view["name"], view["destination"]) for view in ours["external_views"]} == {
        ("Deltaworks", "nav"),
        ("Deltaworks, own tab", "nav"),
        ("Deltaworks", "dag"),
        ("Deltaworks dashboards", "nav"),
    }


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
    assert found["stream__games"]["Last progress"] == "/deltaworks/streams/games"
    assert found["gold__games"]["Last progress"] == "/deltaworks/streams/games"
    assert found["relay__landing"]["Last progress"] == "/deltaworks/dag/relay__landing"
    expected_log = f"/dags/stream__games/runs/{quote(run, safe='')}/tasks/ingest?try_number=2"
    assert found["stream__games"]["Driver log"] == expected_log
    assert found["stream__games"]["Spark UI"] == ""
