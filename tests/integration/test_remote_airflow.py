"""Commands on a machine without a stack: they reach Airflow only by their environment's declaration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltaworks.airflow_client.login import CONNECTION_VARIABLE
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import present, write_files
from tests.integration.airflow_harness import BACK_SECONDS, PIPELINE, AirflowHarness, alive, running_harness, wait
from tests.integration.airflow_people import People

DAG, VACUUM = "clicks__stream", "clicks__maintenance"
DECLARED = "airflow: {url: env:URL_OF_AIRFLOW, username: env:USER_OF_AIRFLOW, password: env:PASSWORD_OF_AIRFLOW}\n"


@dataclass
class RemoteMachine:
    """A checkout of the same pipeline and one more, whose environment declares the stack's Airflow."""

    folder: Path
    variables: Mapping[str, str]

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "deltaworks.cli", *words],
            env={**self.variables, **variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, exit_code: int = 0, **variables: str) -> tuple[str, str]:
        """Runs a command that must end with this exit code; returns its standard output and error."""
        with self.start(*words, **variables) as process:
            said, complained = process.communicate(timeout=400)
        assert process.returncode == exit_code, (said, complained)
        return said, complained


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project")) as harness:
        yield harness


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with harness.people() as people:
        yield people


@pytest.fixture(scope="module")
def remote(harness: AirflowHarness, tmp_path_factory: pytest.TempPathFactory) -> RemoteMachine:
    folder = tmp_path_factory.mktemp("elsewhere")
    here = harness.home.project / "include"
    shutil.copytree(here / "pipelines", folder / "include" / "pipelines")
    shutil.copytree(here / "relays", folder / "include" / "relays")
    other = PIPELINE.replace("pipeline: clicks", "pipeline: clicks_2")
    environment = (here / "environments" / "local.yaml").read_text().replace("environment: local", "environment: far")
    far = {"pipelines/clicks_2/pipeline.yaml": other, "environments/far.yaml": environment + DECLARED}
    write_files(folder / "include", far)
    with harness.people() as airflow:
        login = airflow.login
    variables = {name: value for name, value in os.environ.items() if name != CONNECTION_VARIABLE} | {
        "PYTHONPATH": str(PROJECT_ROOT / "include"),
        "DELTAWORKS_PROJECT": str(folder),
        "DELTAWORKS_ENVIRONMENT": "far",
        # No stack was started here, so no settings are inherited.
        "DELTAWORKS_HOME": str(folder / "no-stack"),
        "URL_OF_AIRFLOW": login.url,
        "USER_OF_AIRFLOW": login.username,
        "PASSWORD_OF_AIRFLOW": login.password,
    }
    return RemoteMachine(folder, variables)


def is_paused(people: People) -> bool:
    return present(people.dag(DAG)).is_paused


@pytest.mark.timeout(900)
def test_a_stream_is_stopped_started_and_restarted(
    harness: AirflowHarness, people: People, remote: RemoteMachine
) -> None:
    first = harness.await_progress(len(harness.rows()))

    said, _ = remote.run("stop", "clicks")
    assert "clicks is stopped." in said
    assert is_paused(people)
    wait(lambda: not alive(first.pid), "the driver outlived its stop", 60)

    remote.run("start", "clicks")
    assert not is_paused(people)
    second = harness.await_progress(len(harness.rows()))
    assert second.pid != first.pid

    said, _ = remote.run("restart", "clicks")
    assert "clicks is released" in said
    assert not is_paused(people)
    third = harness.await_progress(len(harness.rows()))
    assert third.pid != second.pid
    assert third.epoch > second.epoch


@pytest.mark.timeout(900)
def test_a_rejected_login_still_stops_the_stream_by_its_flag(
    harness: AirflowHarness, people: People, remote: RemoteMachine
) -> None:
    before = harness.await_progress(len(harness.rows()))

    _, complained = remote.run("stop", "clicks", exit_code=10, PASSWORD_OF_AIRFLOW="another-than-this")

    assert "AIRFLOW_LOGIN_REFUSED clicks has ended with its stop flag set" in complained
    assert not is_paused(people)
    flag = StopFlag(open_objects(harness.catalog.environment.lake), paths.pipeline_control("clicks", "stop.json"))
    assert flag.read() is not None
    wait(lambda: not alive(before.pid), "the driver outlived its stop", BACK_SECONDS)

    remote.run("start", "clicks")
    harness.await_progress(len(harness.rows()))


@pytest.mark.timeout(900)
def test_an_operation_runs_in_airflow_and_returns_its_results(harness: AirflowHarness, remote: RemoteMachine) -> None:
    harness.await_progress(0)

    said, complained = remote.run("vacuum", "clicks", "--tables", "clicks", "--in-airflow", "--json")

    (record,) = json.loads(said)
    assert (record["table"], record["dry_run"]) == ("clicks", True)
    assert f"Triggered {VACUUM}: run manual__" in complained
    assert "count: success" in complained


@pytest.mark.timeout(900)
def test_a_rejected_operation_links_its_question_and_fails(
    harness: AirflowHarness, people: People, remote: RemoteMachine
) -> None:
    harness.await_progress(0)

    with remote.start("vacuum", "clicks", "--no-dry-run", "--in-airflow", "--wait-minutes", "8") as command:
        assert command.stdout is not None
        lines: list[str] = []
        for line in command.stdout:
            lines.append(line)
            if "required_actions" in line:
                run = people.dag_runs(VACUUM, limit=1)[0]
                assert f"/dags/{VACUUM}/runs/" in line
                people.answer(VACUUM, run.run_id, "approve", "Reject")
        assert command.stderr is not None
        complained = command.stderr.read()

    assert command.returncode == 11, (lines, complained)
    assert "APPROVAL_REJECTED" in complained


@pytest.mark.timeout(900)
def test_an_operation_that_fails_in_airflow_returns_its_jobs_error(
    harness: AirflowHarness, remote: RemoteMachine
) -> None:
    harness.await_progress(0)

    words = ("restore", "clicks", "clicks", "--to-version", "1", "--to-batch", "1", "--in-airflow")
    _, complained = remote.run(*words, exit_code=21)

    assert re.search(r"DAG_RUN_FAILED clicks__restore run \S+ failed in count: \[RESTORE_POINT_INVALID\] ", complained)
    assert "Exactly one restore point is required." in complained


@pytest.mark.timeout(300)
def test_a_dag_unknown_to_this_airflow_is_rejected_with_the_closest_match(remote: RemoteMachine) -> None:
    _, complained = remote.run("vacuum", "clicks_2", "--in-airflow", exit_code=10)

    assert "AIRFLOW_DAG_UNKNOWN" in complained
    assert f"did you mean {VACUUM!r}" in complained
    assert "within about a minute" in complained
