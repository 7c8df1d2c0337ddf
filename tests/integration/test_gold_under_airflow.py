"""Gold under Airflow's own processes: dates built by its own backfill, and a run that misses its deadline told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from deltaworks.airflow import names
from deltaworks.control import paths
from deltaworks.gold.inputs import BUILT_FROM
from deltaworks.gold.shadow import find_shadows
from deltaworks.operations.airflow_resources import DagRun
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from sandbox.stack.environment import process_environment
from tests.integration.airflow_people import People
from tests.integration.airflow_stage import GOLD, Stage, running_stage, wait

pytestmark = pytest.mark.integration
BUILD_SECONDS = 240.0
GOLD_DAG, REFRESH = names.gold_dag_id("clicks"), names.operation_dag_id("refresh_gold", "clicks")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_stage(tmp_path_factory.mktemp("project"), more=GOLD) as stage:
        assert stage.queue
        stage.await_progress(20)
        yield stage


@pytest.fixture
def people(stage: Stage) -> Iterator[People]:
    with stage.people() as people:
        yield people


def backfilled(people: People) -> list[DagRun]:
    return [run for run in people.dag_runs(GOLD_DAG) if run.run_id.startswith("backfill__")]


def builds(stage: Stage) -> list[dict[str, int]]:
    """What each build of the gold table was made from, the newest first."""
    lake, key = Lake(stage.catalog.environment.lake), paths.table("clicks", "per_day")
    table = lake.open(key)
    if table is None:
        return []
    history = commit_history(lake, key, newest=table.version())
    return [commit.metadata[BUILT_FROM] for commit in history if BUILT_FROM in commit.metadata]


@pytest.mark.timeout(520)
def test_airflows_own_backfill_builds_the_dates_it_names(stage: Stage, people: People) -> None:
    command = ["backfill", "create", "--dag-id", GOLD_DAG, "--from-date", "2023-11-14", "--to-date", "2023-11-15"]

    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command],
        env=process_environment(stage.home),
        cwd=stage.home.run,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    wait(lambda: len(backfilled(people)) == 2, "Airflow made no two runs", 60)
    for run in backfilled(people):
        assert people.wait_for_run(GOLD_DAG, run.run_id, timeout_seconds=BUILD_SECONDS).state == "success"
    # A date that is built alone leaves what the others were built from as it was.
    newest, first = builds(stage)[0], builds(stage)[-1]
    assert newest == first
    answers = Lake(stage.catalog.environment.lake).rows(paths.table("clicks", "per_day"))
    assert answers is not None
    assert {str(row["event_date"]) for row in answers.to_pylist()} == {"2023-11-14"}


@pytest.mark.timeout(400)
def test_a_run_that_misses_its_deadline_is_told_and_its_end_ends_that(stage: Stage, people: People) -> None:
    people.trigger(GOLD_DAG, run_id="late")

    wait(
        lambda: ("DEADLINE_MISSED", GOLD_DAG, "raised") in stage.told(),
        "the deadline of three seconds passed in silence",
        60,
    )

    assert people.wait_for_run(GOLD_DAG, "late", timeout_seconds=BUILD_SECONDS).state == "success"
    wait(lambda: ("DEADLINE_MISSED", GOLD_DAG, "resolved") in stage.told(), "its end was not told", 60)


@pytest.mark.timeout(520)
def test_an_edited_table_is_counted_by_default_and_swapped_in_from_a_shadow_when_told(
    stage: Stage, people: People
) -> None:
    people.trigger(GOLD_DAG, run_id="before")
    assert people.wait_for_run(GOLD_DAG, "before", timeout_seconds=BUILD_SECONDS).state == "success"
    lake, key = Lake(stage.catalog.environment.lake), paths.table("clicks", "per_day")
    before = _version(lake, key)
    sql = stage.home.project / "include" / "pipelines" / "clicks" / "per_day.sql"
    sql.write_text("SELECT event_date, 'second' AS edition, count(*) AS clicks FROM clicks GROUP BY event_date")
    form = {"tables": ["per_day"]}

    people.trigger(REFRESH, conf=form, run_id="counted")
    assert people.wait_for_run(REFRESH, "counted", timeout_seconds=BUILD_SECONDS).state == "success"
    assert _version(lake, key) == before

    people.trigger(REFRESH, conf=form | {"dry_run": False}, run_id="swapped")
    assert people.wait_for_run(REFRESH, "swapped", timeout_seconds=BUILD_SECONDS).state == "success"
    answers = lake.rows(key)
    assert answers is not None
    assert {row["edition"] for row in answers.to_pylist()} == {"second"}
    assert 0 < sum(row["clicks"] for row in answers.to_pylist()) <= len(stage.rows())
    assert find_shadows(lake, "clicks", "per_day").numbers == ()


def _version(lake: Lake, key: str) -> int:
    table = lake.open(key)
    assert table is not None
    return table.version()
