"""The console in Airflow's real API server: access, actions, menu entries and task links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.console_harness import write_process_heartbeat

DAGS = (
    "games__stream",
    "edits__stream",
    "landing__relay",
    "deltaworks__health",
    "games__gold",
    "players__erase",
    "somebody_elses",
)
#: Status of each address: without login, with a forged token, for a viewer, and for an administrator.
ANSWERS = {
    "/deltaworks/": (303, 403, 200, 200),
    "/deltaworks/dag/games__stream": (303, 403, 200, 200),
    "/deltaworks/dag/landing__relay": (303, 403, 200, 200),
    "/deltaworks/dag/somebody_elses": (303, 403, 200, 200),
    "/deltaworks/dag/unknown": (303, 403, 404, 404),
}


@pytest.fixture(scope="module")
def dags_on_record(airflow_database: None) -> None:
    """The parsed DAGs in the metadata database."""
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
    """Airflow's API server with this project's plugins folder."""
    from airflow.api_fastapi.app import create_app

    from tests.dags.console_client import ConsoleClient

    with ConsoleClient(create_app(apps="core"), raise_server_exceptions=True, follow_redirects=False) as client:
        yield client


def as_user(name: str, role: str) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    return {"Authorization": f"Bearer {token}"}


ADA, VIC = ("ada", "admin"), ("vic", "viewer")


@pytest.mark.parametrize("page", ANSWERS)
def test_access_to_each_route(server: Any, project: Path, page: str) -> None:
    logins = ({}, {"Authorization": "Bearer forged"}, as_user(*VIC), as_user(*ADA))

    assert (
        tuple(server.get(page, headers={"Accept": "text/html", **login}).status_code for login in logins)
        == ANSWERS[page]
    )


def test_a_user_without_login_is_redirected_to_airflows_login(server: Any, project: Path) -> None:
    answer = server.get("/deltaworks/?only=games", headers={"Accept": "text/html"})

    assert answer.headers["location"].startswith("/auth/login?next=")
    assert quote("/deltaworks/?only=games", safe="") in answer.headers["location"]


def test_a_script_without_login_gets_401(server: Any, project: Path) -> None:
    assert server.get("/deltaworks/?format=json").status_code == 401


def test_every_relay_and_stream_whose_dag_is_on_record_is_shown(server: Any, project: Path) -> None:
    objects = open_objects(load_catalog().environment.lake)
    write_process_heartbeat(objects, paths.pipeline_control("games"), "games")
    shown = server.get("/deltaworks/?format=json", headers=as_user(*VIC)).json()["view"]

    assert [row["name"] for row in shown["streams"]] == ["edits", "games"]
    assert [row["name"] for row in shown["other_processes"]] == ["landing"]
    assert {row["may_restart"] for row in shown["streams"]} == {False}
    by_admin = server.get("/deltaworks/?format=json", headers=as_user(*ADA)).json()["view"]
    assert {row["may_restart"] for row in by_admin["streams"]} == {True}


def test_the_page_of_an_unrelated_dag_has_a_message(server: Any, project: Path) -> None:
    html = server.get("/deltaworks/dag/somebody_elses", headers={"Accept": "text/html", **as_user(*VIC)}).text

    assert "is not a DAG of Deltaworks" in html


def test_airflow_accepts_every_view_of_the_plugin(server: Any, project: Path) -> None:
    listed = server.get("/api/v2/plugins", headers=as_user(*ADA)).json()["plugins"]
    (ours,) = [plugin for plugin in listed if plugin["name"] == "deltaworks"]

    assert {(view["name"], view["destination"]) for view in ours["external_views"]} == {
        ("Deltaworks", "nav"),
        ("Deltaworks (new tab)", "nav"),
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
    tasks = (
        ("games__stream", "ingest"),
        ("games__gold", "rebuild_gold"),
        ("games__maintenance", "vacuum_tables"),
        ("games__restore", "restore"),
        ("landing__relay", "relay"),
    )
    for dag_id, task_id in tasks:
        dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags[dag_id]))
        task, key = dag.get_task(task_id), TaskInstanceKey(dag_id, task_id, run, 2, -1)
        links = {link: task.operator_extra_link_dict[link].get_link(task, ti_key=key) for link in task.extra_links}
        found[dag_id] = links

    assert sorted(found["games__stream"]) == ["Alerts", "Console", "Driver log", "Spark UI"]
    assert sorted(found["landing__relay"]) == ["Alerts", "Console", "Driver log"]
    assert {dag_id: links["Console"] for dag_id, links in found.items()} == {
        "games__stream": "/deltaworks/streams/games",
        "games__gold": "/deltaworks/gold/games",
        "games__maintenance": "/deltaworks/nights/games",
        "games__restore": "/deltaworks/tables?pipeline=games",
        "landing__relay": "/deltaworks/dag/landing__relay",
    }
    assert found["games__gold"]["Alerts"] == "/deltaworks/alerts?only=games"
    expected_log = f"/dags/games__stream/runs/{quote(run, safe='')}/tasks/ingest?try_number=2"
    assert found["games__stream"]["Driver log"] == expected_log
    assert found["games__stream"]["Spark UI"] == ""


def in_process(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the console find the test application as that of its process."""
    import sys
    from types import SimpleNamespace

    from deltaworks.airflow import console_host

    monkeypatch.setitem(sys.modules, "airflow.api_fastapi.main", SimpleNamespace(app=server.app))
    monkeypatch.setattr(console_host, "_check_scheduler", lambda: "")


OWN = {"Accept": "text/html", "Origin": "http://testserver"}
CONTROL = "/deltaworks/actions/control/games"


@pytest.fixture
def control_dag(dags_on_record: None, project: Path) -> None:
    """The parsed `games__control` in the metadata database."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dag_folder=str(Path(__file__).parents[2] / "dags" / "operations.py"))
    for dag_id in [dag_id for dag_id in bag.dags if dag_id != "games__control"]:
        del bag.dags[dag_id]
    sync_bag_to_db(bag, "dags-folder", None)


def test_a_person_starts_a_run_once_and_in_their_own_name(
    server: Any, control_dag: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(server, monkeypatch)
    form = server.get(f"{CONTROL}?verb=restart", headers={"Accept": "text/html", **as_user(*ADA)})
    assert form.status_code == 200, form.text
    assert "<option selected>restart</option>" in form.text
    values = {"_nonce": "nonce-of-this-test-1", "verb": "restart", "reason": "a new key", "_note": "by hand"}

    answers = [server.post(CONTROL, data=values, headers={**OWN, **as_user(*ADA)}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [303, 303], answers[0].text
    runs = server.get("/api/v2/dags/games__control/dagRuns", headers=as_user(*ADA)).json()["dag_runs"]
    (run,) = [run for run in runs if run["dag_run_id"] == "console__nonce-of-this-test-1"]
    assert (run["triggering_user_name"], run["note"]) == ("ada", "by hand")
    assert run["conf"]["action"] == "restart"
    assert run["conf"]["reason"] == "a new key"
    shown = server.get(answers[0].headers["location"], headers={"Accept": "text/html", **as_user(*ADA)})
    assert "queued" in shown.text
    assert "for ada" in shown.text
    logged = server.get(
        "/api/v2/eventLogs", params={"dag_id": "games__control", "limit": 100}, headers=as_user(*ADA)
    ).json()["event_logs"]
    assert {entry["owner"] for entry in logged if "trigger" in entry["event"]} == {"ada"}


def test_a_viewer_and_a_foreign_page_start_nothing(
    server: Any, control_dag: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(server, monkeypatch)
    values = {"_nonce": "nonce-of-this-test-2", "verb": "stop"}

    viewer = server.post(CONTROL, data=values, headers={**OWN, **as_user(*VIC)})
    untrusted = server.post(CONTROL, data=values, headers={**OWN, "Origin": "https://evil.example", **as_user(*ADA)})

    assert (viewer.status_code, untrusted.status_code) == (403, 403)
    runs = server.get("/api/v2/dags/games__control/dagRuns", headers=as_user(*ADA)).json()["dag_runs"]
    assert "console__nonce-of-this-test-2" not in {run["dag_run_id"] for run in runs}


def test_a_pending_approval_is_on_the_overview_until_it_is_answered(
    server: Any, control_dag: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(server, monkeypatch)
    answer = ask_for_approval("games__control")
    shown = server.get("/deltaworks/?format=json", headers=as_user(*VIC)).json()["view"]["approvals"]

    (waits,) = shown
    assert (waits["dag_id"], waits["subject"]) == ("games__control", "restart games?")
    assert waits["address"] == "/dags/games__control/runs/asks/tasks/approve/required_actions"
    assert "Pending approvals: 1" in server.get("/deltaworks/", headers={**OWN, **as_user(*VIC)}).text

    answer()
    from deltaworks.airflow import console_host

    monkeypatch.setattr(console_host, "_APPROVALS_CACHE_SECONDS", -1.0)
    assert server.get("/deltaworks/?format=json", headers=as_user(*VIC)).json()["view"]["approvals"] == []


def ask_for_approval(dag_id: str) -> Callable[[], None]:
    """Creates a run whose task `approve` waits; returns a function that answers it."""
    from airflow._shared.timezones import timezone
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        version = present(DagVersion.get_latest_version(dag_id, session=session))
        run = DagRun(
            dag_id=dag_id,
            run_id="asks",
            run_type=DagRunType.MANUAL,
            run_after=timezone.utcnow(),
            state=DagRunState.RUNNING,
            triggered_by=DagRunTriggeredByType.TEST,
        )
        session.add(run)
        session.flush()
        task = TaskInstance(EmptyOperator(task_id="approve"), run_id="asks", dag_version_id=version.id)
        task.dag_id = dag_id
        task.state = TaskInstanceState.AWAITING_INPUT
        session.add(task)
        session.flush()
        question = HITLDetail(ti_id=task.id, options=["Approve", "Reject"], subject="restart games?", params={})
        session.add(question)
        task_id = task.id
    assert SerializedDagModel.has_dag(dag_id)

    def answer() -> None:
        with create_session() as session:
            stored = present(session.get(HITLDetail, task_id))
            stored.responded_at = timezone.utcnow()
            stored.chosen_options = ["Approve"]

    return answer


def test_airflows_rejection_is_shown_in_its_words(
    server: Any, control_dag: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(server, monkeypatch)
    # Other tests put it on record.
    server.delete("/api/v2/dags/games__restore", headers=as_user(*ADA))

    answer = server.get("/deltaworks/actions/restore/games", headers={"Accept": "text/html", **as_user(*ADA)})

    assert answer.status_code == 404, "its DAG is not on record"
    assert "AIRFLOW_DAG_UNKNOWN" in answer.text
