"""Gold under Airflow's own processes: a backfill by date, and the alert of a missed deadline."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from deltaworks.airflow_client.api import DagRun
from deltaworks.control import paths
from deltaworks.gold.pinned_inputs import BUILT_FROM
from deltaworks.gold.refresh import find_shadows
from deltaworks.operations.dag_forms import ACTION
from deltaworks.specs.dag_ids import dag_id
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import present
from sandbox.stack.environment import process_environment
from tests.integration.airflow_harness import GOLD, AirflowHarness, running_harness, wait
from tests.integration.airflow_people import People
from tests.processes import run_process

BUILD_SECONDS = 240.0
GOLD_DAG = dag_id("clicks", "gold")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project"), more=GOLD) as harness:
        assert harness.queue
        harness.await_progress(20)
        yield harness


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with harness.people() as people:
        yield people


def backfilled(people: People) -> list[DagRun]:
    return [run for run in people.dag_runs(GOLD_DAG) if run.run_id.startswith("backfill__")]


def builds(harness: AirflowHarness) -> list[dict[str, int]]:
    """Returns the inputs of each build of the gold table, newest first."""
    lake, key = Lake(harness.catalog.environment.lake), paths.table("clicks", "per_day")
    table = lake.open(key)
    if table is None:
        return []
    history = commit_history(lake, key, newest=table.version())
    return [commit.metadata[BUILT_FROM] for commit in history if BUILT_FROM in commit.metadata]


@pytest.mark.timeout(520)
def test_airflows_backfill_builds_its_dates(harness: AirflowHarness, people: People) -> None:
    command = ["backfill", "create", "--dag-id", GOLD_DAG, "--from-date", "2023-11-14", "--to-date", "2023-11-15"]

    done = run_process(
        [sys.executable, "-m", "airflow", *command],
        env=process_environment(harness.home),
        cwd=harness.home.run,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    wait(lambda: len(backfilled(people)) == 2, "Airflow made no two runs", 60)
    for run in backfilled(people):
        assert people.wait_for_run(GOLD_DAG, run.run_id, timeout_seconds=BUILD_SECONDS).state == "success"
    # A build of one date does not change the recorded inputs of other dates.
    newest, first = builds(harness)[0], builds(harness)[-1]
    assert newest == first
    answers = present(Lake(harness.catalog.environment.lake).rows(paths.table("clicks", "per_day")))
    assert {str(row["event_date"]) for row in answers.to_pylist()} == {"2023-11-14"}


@pytest.mark.timeout(400)
def test_a_missed_deadline_is_alerted_and_resolved_by_the_runs_end(harness: AirflowHarness, people: People) -> None:
    people.trigger(GOLD_DAG, run_id="late")

    wait(
        lambda: ("DEADLINE_MISSED", GOLD_DAG, "raised") in harness.told(),
        "the deadline of three seconds passed in silence",
        60,
    )

    assert people.wait_for_run(GOLD_DAG, "late", timeout_seconds=BUILD_SECONDS).state == "success"
    wait(lambda: ("DEADLINE_MISSED", GOLD_DAG, "resolved") in harness.told(), "its end was not told", 60)


@pytest.mark.timeout(520)
def test_a_gold_refresh_is_a_dry_run_by_default_and_swaps_a_shadow_on_request(
    harness: AirflowHarness, people: People
) -> None:
    people.trigger(GOLD_DAG, run_id="before")
    assert people.wait_for_run(GOLD_DAG, "before", timeout_seconds=BUILD_SECONDS).state == "success"
    lake, key = Lake(harness.catalog.environment.lake), paths.table("clicks", "per_day")
    before = _version(lake, key)
    sql = harness.home.project / "include" / "pipelines" / "clicks" / "per_day.sql"
    sql.write_text("SELECT event_date, 'second' AS edition, count(*) AS clicks FROM clicks GROUP BY event_date")
    form = {ACTION: "refresh", "tables": ["per_day"]}

    people.trigger(GOLD_DAG, conf=form, run_id="counted")
    assert people.wait_for_run(GOLD_DAG, "counted", timeout_seconds=BUILD_SECONDS).state == "success"
    assert _version(lake, key) == before

    people.trigger(GOLD_DAG, conf=form | {"dry_run": False}, run_id="swapped")
    assert people.wait_for_run(GOLD_DAG, "swapped", timeout_seconds=BUILD_SECONDS).state == "success"
    answers = present(lake.rows(key))
    assert {row["edition"] for row in answers.to_pylist()} == {"second"}
    assert 0 < sum(row["clicks"] for row in answers.to_pylist()) <= len(harness.rows())
    assert find_shadows(lake, "clicks", "per_day").numbers == ()


def _version(lake: Lake, key: str) -> int:
    return present(lake.open(key)).version()
