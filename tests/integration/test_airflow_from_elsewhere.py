"""Commands on a machine without a stack: they reach Airflow by what their environment declares, and by nothing else."""

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

from deltaworks.control import paths
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.operations.airflow_login import CONNECTION_VARIABLE
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.integration.airflow_people import People
from tests.integration.airflow_stage import BACK_SECONDS, PIPELINE, Stage, alive, running_stage, wait

pytestmark = pytest.mark.integration
DAG, VACUUM = "stream__clicks", "vacuum_tables__clicks"
DECLARED = "airflow: {url: env:URL_OF_AIRFLOW, username: env:USER_OF_AIRFLOW, password: env:PASSWORD_OF_AIRFLOW}\n"


@dataclass
class Elsewhere:
    """A checkout of the same pipeline, and of one more, with an environment that declares the stack's Airflow."""

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
        """What a command says, on standard output and error, where it ends with that exit code."""
        with self.start(*words, **variables) as process:
            said, complained = process.communicate(timeout=400)
        assert process.returncode == exit_code, (said, complained)
        return said, complained


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_stage(tmp_path_factory.mktemp("project")) as stage:
        yield stage


@pytest.fixture
def people(stage: Stage) -> Iterator[People]:
    with stage.people() as people:
        yield people


@pytest.fixture(scope="module")
def elsewhere(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    folder = tmp_path_factory.mktemp("elsewhere")
    here = stage.home.project / "include"
    shutil.copytree(here / "pipelines", folder / "include" / "pipelines")
    shutil.copytree(here / "relays", folder / "include" / "relays")
    other = folder / "include" / "pipelines" / "clicks_2" / "pipeline.yaml"
    other.parent.mkdir()
    other.write_text(PIPELINE.replace("pipeline: clicks", "pipeline: clicks_2"))
    environment = (here / "environments" / "local.yaml").read_text().replace("environment: local", "environment: far")
    (folder / "include" / "environments").mkdir()
    (folder / "include" / "environments" / "far.yaml").write_text(environment + DECLARED)
    with stage.people() as airflow:
        login = airflow.login
    variables = {name: value for name, value in os.environ.items() if name != CONNECTION_VARIABLE} | {
        "PYTHONPATH": str(PROJECT_ROOT / "include"),
        "DELTAWORKS_PROJECT": str(folder),
        "DELTAWORKS_ENVIRONMENT": "far",
        # No stack was ever started here, so no settings are taken over.
        "DELTAWORKS_HOME": str(folder / "no-stack"),
        "URL_OF_AIRFLOW": login.url,
        "USER_OF_AIRFLOW": login.username,
        "PASSWORD_OF_AIRFLOW": login.password,
    }
    return Elsewhere(folder, variables)


def is_paused(people: People) -> bool:
    dag = people.dag(DAG)
    assert dag is not None
    return dag.is_paused


@pytest.mark.timeout(900)
def test_a_stream_is_stopped_started_and_restarted(stage: Stage, people: People, elsewhere: Elsewhere) -> None:
    first = stage.await_progress(len(stage.rows()))

    said, _ = elsewhere.run("stop", "clicks")
    assert "clicks is stopped." in said
    assert is_paused(people)
    wait(lambda: not alive(first.pid), "the driver outlived its stop", 60)

    elsewhere.run("start", "clicks")
    assert not is_paused(people)
    second = stage.await_progress(len(stage.rows()))
    assert second.pid != first.pid

    said, _ = elsewhere.run("restart", "clicks")
    assert "clicks may run again" in said
    assert not is_paused(people)
    third = stage.await_progress(len(stage.rows()))
    assert third.pid != second.pid
    assert third.epoch > second.epoch


@pytest.mark.timeout(900)
def test_a_login_that_airflow_refuses_still_ends_the_stream_by_its_flag(
    stage: Stage, people: People, elsewhere: Elsewhere
) -> None:
    before = stage.await_progress(len(stage.rows()))

    _, complained = elsewhere.run("stop", "clicks", exit_code=10, PASSWORD_OF_AIRFLOW="another-than-this")

    assert "AIRFLOW_LOGIN_REFUSED clicks has ended and stays stopped by its flag" in complained
    assert not is_paused(people)
    flag = StopFlag(open_objects(stage.catalog.environment.lake), paths.pipeline_control("clicks", "stop.json"))
    assert flag.read() is not None
    wait(lambda: not alive(before.pid), "the driver outlived its stop", BACK_SECONDS)

    elsewhere.run("start", "clicks")
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_an_operation_runs_in_airflow_and_its_results_come_back(stage: Stage, elsewhere: Elsewhere) -> None:
    stage.await_progress(0)

    said, complained = elsewhere.run("vacuum", "clicks", "--tables", "clicks", "--in-airflow", "--json")

    (record,) = json.loads(said)
    assert (record["table"], record["dry_run"]) == ("clicks", True)
    assert f"Triggered {VACUUM}: run manual__" in complained
    assert "count: success" in complained


@pytest.mark.timeout(900)
def test_an_operation_that_a_person_rejects_says_where_it_asks_and_is_no_success(
    stage: Stage, people: People, elsewhere: Elsewhere
) -> None:
    stage.await_progress(0)

    with elsewhere.start("vacuum", "clicks", "--no-dry-run", "--in-airflow", "--wait-minutes", "8") as command:
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
def test_an_operation_that_fails_in_airflow_is_answered_with_its_jobs_own_error(
    stage: Stage, elsewhere: Elsewhere
) -> None:
    stage.await_progress(0)

    words = ("restore", "clicks", "clicks", "--to-version", "1", "--to-batch", "1", "--in-airflow")
    _, complained = elsewhere.run(*words, exit_code=21)

    assert re.search(r"DAG_RUN_FAILED restore__clicks run \S+ failed in count: \[RESTORE_POINT_INVALID\] ", complained)
    assert "Give --to-version, --to-time or --to-batch." in complained


@pytest.mark.timeout(300)
def test_a_dag_that_this_airflow_does_not_have_is_answered_with_the_nearest(elsewhere: Elsewhere) -> None:
    _, complained = elsewhere.run("vacuum", "clicks_2", "--in-airflow", exit_code=10)

    assert "AIRFLOW_DAG_UNKNOWN" in complained
    assert f"did you mean {VACUUM!r}" in complained
    assert "within a minute" in complained
