"""The API client against Airflow's real API, with the DAGs and forms of a project."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.listing import Listing
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.operations import in_airflow
from deltaworks.operations.base import RESULTS_KEY, Operation
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.commands import output_of
from tests.dags.airflow_project import HOME, REPOSITORY, run_python, write_project
from tests.unit.operations.option_values import required_options
from tests.waiting import eventually

STREAM, SNAPSHOT, REPROCESS = "games__stream", "games__maintenance", "games__reprocess"
#: Operations of collectors, personal data, mutations, models, feeds and catalogs, of which the project has none.
NOT_OFFERED = {
    *("find_lost_events", "ingest_vault", "maintain_vault", "reveal", "erase"),
    *("mutate_tables", "purge_deleted", "train_model", "replay_feed"),
    "sync_catalogs",
}
OFFERED = [declared for declared in OPERATIONS.values() if declared.name not in NOT_OFFERED]
#: Puts the DAGs of a folder where the API finds them, as the DAG processor does.
PARSE = """
import json, sys
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
DagBundlesManager().sync_bundles_to_db()
bag = BundleDagBag({folder!r}, bundle_path={folder!r}, bundle_name="dags-folder")
sync_bag_to_db(bag, "dags-folder", None)
print(json.dumps([sorted(bag.dags), sorted(bag.import_errors)]))
"""


class Client(AirflowApi):
    """A client with helpers that change Airflow's state as people and tasks do."""

    def invalidate_token(self) -> None:
        """Replaces the token by one that Airflow did not sign, as after a restart with another secret."""
        self._authorize("signed.by.nobody")

    def pause_matching(self, pattern: str, *, paused: bool) -> None:
        """Pauses or unpauses matching DAGs in one statement, as Airflow's DAG list does."""
        self._request("PATCH", "/dags", params={"dag_id_pattern": pattern}, json={"is_paused": paused})

    def push_result(self, dag_id: str, run_id: str, task_id: str, value: Any) -> None:
        """Pushes a result as a task does."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries"
        self._request("POST", path, json={"key": RESULTS_KEY, "value": value})

    def end(self, dag_id: str, run_id: str) -> None:
        """Marks a run as successful."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"
        self._request("PATCH", path, params={"update_mask": "state"}, json={"state": "success"})


@pytest.fixture(scope="module")
def dag_ids(airflow_database: None, sample_project: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The DAGs of the sample project, and a file that cannot be imported."""
    folder = tmp_path_factory.mktemp("dags")
    shutil.copytree(REPOSITORY / "dags", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "broken.py").write_text("from airflow.sdk import dag\nimport no_such_module\n")
    dags, errors = run_python(PARSE.format(folder=str(folder)), sample_project)
    assert [Path(error).name for error in errors] == ["broken.py"]
    return set(dags)


@pytest.fixture(scope="module")
def url(dag_ids: set[str]) -> Iterator[str]:
    """Airflow's API server, in this process."""
    import uvicorn
    from airflow.api_fastapi.app import create_app

    config = uvicorn.Config(create_app(apps="core"), host="127.0.0.1", port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    eventually(lambda: server.started, "Airflow's API answers")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    serving.join(timeout=30)


def login(url: str, name: str) -> AirflowLogin:
    passwords = json.loads((HOME / "simple_auth_manager_passwords.json.generated").read_text())
    return AirflowLogin(url=url, source="the tests", username=name, password=passwords[name])


@pytest.fixture
def ada(url: str) -> Iterator[Client]:
    """An administrator."""
    with Client(login(url, "ada")) as api:
        yield api


@pytest.fixture
def viewer(url: str) -> Iterator[AirflowApi]:
    """A user with read access only."""
    with AirflowApi(login(url, "vic")) as api:
        yield api


def test_all_dags_of_the_project_are_listed_with_their_files(ada: Client, dag_ids: set[str]) -> None:
    dags = {dag.dag_id: dag for dag in ada.dags()}

    assert dag_ids <= set(dags)
    assert dags[STREAM].file == "streams.py"


def test_a_dag_is_paused_and_unpaused(ada: Client) -> None:
    for paused, change in ((True, ada.pause), (False, ada.unpause)):
        change(STREAM)
        assert present(ada.dag(STREAM)).is_paused == paused


def test_concurrent_changes_are_all_answered(ada: Client, dag_ids: set[str]) -> None:
    """Airflow writes its audit log before a change and commits it afterwards on another thread, which deadlocks on
    SQLite.
    """
    asked = sorted(dag_ids)[:8]

    def pause(dag_id: str) -> None:
        with Client(ada.login, should_retry=False) as api:
            for paused in (True, False, True):
                api.pause_matching(dag_id, paused=paused)

    with ThreadPoolExecutor(max_workers=len(asked)) as people:
        list(people.map(pause, asked))

    assert {dag.dag_id for dag in ada.dags() if dag.is_paused} == set(asked)
    for dag_id in asked:
        ada.unpause(dag_id)


def test_all_dags_are_paused_and_unpaused_by_one_request(ada: Client, dag_ids: set[str]) -> None:
    for paused in (True, False):
        ada.pause_all(paused=paused)
        assert {dag.is_paused for dag in ada.dags()} == {paused}


def test_a_viewer_gets_an_error_with_the_missing_permission(viewer: AirflowApi) -> None:
    assert viewer.dag(STREAM) is not None
    with pytest.raises(ConfigError, match=r"AIRFLOW_FORBIDDEN.*vic \(from the tests\) may not edit the DAG"):
        viewer.pause(STREAM)
    with pytest.raises(ConfigError, match=r"AIRFLOW_FORBIDDEN.*may not trigger the DAG"):
        viewer.trigger(SNAPSHOT)


def test_a_wrong_password_is_rejected(url: str) -> None:
    wrong = AirflowLogin(url=url, source="the tests", username="ada", password="another-than-this")

    with AirflowApi(wrong) as api, pytest.raises(ConfigError, match="AIRFLOW_LOGIN_REFUSED"):
        api.pause(STREAM)


def test_a_token_that_airflow_did_not_sign_is_replaced_by_a_login(ada: Client) -> None:
    ada.invalidate_token()

    assert ada.dag(STREAM) is not None


def test_an_unknown_dag_is_rejected_with_the_closest_match_and_import_errors(ada: Client) -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_DAG_UNKNOWN") as raised:
        ada.pause("game__stream")

    assert f"did you mean {STREAM!r}" in raised.value.message
    assert "broken.py: ModuleNotFoundError: No module named 'no_such_module'" in raised.value.message


def subject_of(declared: Operation) -> str:
    return {"pipeline": "games", "relay": "landing", "namespace": "players"}[declared.scope]


def test_undeclared_features_have_no_dag(dag_ids: set[str]) -> None:
    offered = {one.dag_id(subject_of(one)) for one in OFFERED}
    undeclared = {OPERATIONS[name].dag_id(subject_of(OPERATIONS[name])) for name in NOT_OFFERED}

    assert (undeclared - offered) & dag_ids == set()
    assert offered <= dag_ids


@pytest.mark.parametrize("declared", OFFERED, ids=lambda declared: declared.name)
def test_the_form_of_every_operation_takes_the_options_of_its_command(
    ada: Client, project: Path, declared: Operation
) -> None:
    model = declared.options_model()
    values = required_options(model, "purchase")

    form, options = form_of(declared), model.model_validate(values)
    run = ada.trigger(declared.dag_id(subject_of(declared)), conf=form.run_values(declared, options))

    assert form.chosen(run.conf) == declared or run.conf["steps"] == [declared.name]
    assert read_options(model, form.option_values(declared, run.conf)) == options
    assert declared.name in {task.task_id for task in ada.task_instances(run.dag_id, run.run_id)}


def test_an_invalid_param_is_rejected_with_airflows_message(ada: Client) -> None:
    with pytest.raises(ConfigError, match=r"AIRFLOW_REFUSED.*400 to POST /dags/games__restore/dagRuns"):
        ada.trigger("games__restore", conf={"action": "restore", "table": "no_such_table"})


def test_a_repeated_trigger_starts_one_run(ada: Client) -> None:
    runs = [ada.trigger(SNAPSHOT, run_id="once") for _ in range(2)]

    assert [run.run_id for run in runs] == ["once", "once"]
    assert [run.run_id for run in ada.dag_runs(SNAPSHOT)].count("once") == 1


def test_an_xcom_is_read_as_written(ada: Client) -> None:
    records: list[dict[str, Any]] = [{"table": "events", "files": 3, "reason": None}]
    run = ada.trigger(SNAPSHOT, run_id="with-results")
    assert ada.xcom(SNAPSHOT, run.run_id, "snapshot_health", RESULTS_KEY) is None
    ada.push_result(SNAPSHOT, run.run_id, "snapshot_health", records)

    assert ada.xcom(SNAPSHOT, run.run_id, "snapshot_health", RESULTS_KEY) == records


def test_a_run_of_an_operation_is_followed_to_its_end(
    ada: Client, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_airflow, "_POLL_SECONDS", 0.01)
    said: list[str] = []

    def as_an_administrator_ends_it(text: str) -> None:
        said.append(text)
        if "queued" in text:
            run_id = said[0].partition(": run ")[2].partition(",")[0]
            ada.end(REPROCESS, run_id)

    report = in_airflow.run_in_airflow(
        OPERATIONS["reprocess"],
        load_catalog(),
        "games",
        {"from_start": True},
        wait_minutes=1,
        echo=as_an_administrator_ends_it,
        connect=lambda: AirflowApi(ada.login),
    )

    assert said[0].startswith(f"Triggered {REPROCESS}: run manual__")
    assert [part.as_records() for part in report.parts if isinstance(part, Listing)] == [[]]


@pytest.fixture
def remote_project(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StopFlag:
    """The stop flag of a stream in a project whose environment declares Airflow."""
    project, ada = write_project(tmp_path / "far"), login(url, "ada")
    environment = project / "include" / "environments" / "local.yaml"
    declared = f"airflow: {{url: {ada.url}, username: ada, password: env:PASSWORD_OF_ADA}}\n"
    environment.write_text(environment.read_text() + declared)
    for name, value in {
        "DELTAWORKS_PROJECT": str(project),
        "DELTAWORKS_ENVIRONMENT": "local",
        "DELTAWORKS_HOME": str(tmp_path / "no-stack"),
        "PASSWORD_OF_ADA": ada.password,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", raising=False)
    objects = open_objects(load_catalog().environment.lake)
    return StopFlag(objects, paths.pipeline_control("games", "stop.json"))


def test_commands_reach_airflow_by_what_the_environment_declares(ada: Client, remote_project: StopFlag) -> None:
    seen = []
    for command in ("stop", "restart", "stop", "start"):
        output_of(command, "games")
        dag = present(ada.dag(STREAM))
        seen.append((command, dag.is_paused, remote_project.read() is not None))

    assert seen == [("stop", True, True), ("restart", False, False), ("stop", True, True), ("start", False, False)]


def test_a_command_triggers_its_operation_there(ada: Client, remote_project: StopFlag) -> None:
    said = output_of("vacuum", "games", "--tables", "events", "--no-dry-run", "--in-airflow", "--wait-minutes", "0")

    (run,) = ada.dag_runs("games__maintenance", limit=1)
    assert f"{ada.login.url}/dags/games__maintenance/runs/manual__" in said
    assert "It waits there for approval of its count." in said
    assert (run.conf["tables"], run.conf["dry_run"]) == (["events"], False)
