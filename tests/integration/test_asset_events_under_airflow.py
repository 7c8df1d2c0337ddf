"""DAGs of users that are scheduled on tables of a stream, under real Airflow processes: the DAG file of the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    AirflowHarness,
    Sender,
    clicks_project,
    people_of,
    running_stack,
    wait,
)
from tests.integration.airflow_people import People

pytestmark = pytest.mark.timeout(900)
GOLD = """
gold:
  tables: [{name: per_day, sql: per_day.sql, reads: [clicks], partition_by: event_date, lag: 5s}]
"""
TABLES = {"bronze.games.events": "bronze.clicks.clicks", "gold.games.events_per_hour": "gold.clicks.per_day"}


def documented_dags() -> str:
    """Returns the DAG file of the docs, for the tables of this project."""
    page = (PROJECT_ROOT / "docs/how-to/feed-other-systems.md").read_text()
    (code,) = re.findall(r"<!-- dag -->\n```python\n(.*?)```", page, re.DOTALL)
    for documented, own in TABLES.items():
        assert documented in code
        code = code.replace(documented, own)
    return code


def with_own_dags(project: Path) -> Path:
    """Replaces the link to the DAG folder by a folder with the same files and the documented one."""
    folder = project / "dags"
    folder.unlink()
    folder.mkdir()
    for file in (PROJECT_ROOT / "dags").glob("*.py"):
        (folder / file.name).symlink_to(file)
    (folder / "follow_tables.py").write_text(documented_dags())
    return project


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    project = with_own_dags(clicks_project(tmp_path_factory.mktemp("project"), more=GOLD))
    with running_stack(project) as (home, catalog):
        harness = AirflowHarness(home, catalog, Sender(catalog))
        try:
            yield harness
        finally:
            harness.sender.close()


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with people_of(harness.home) as people:
        yield people


@pytest.mark.parametrize("table", TABLES.values())
def test_a_dag_runs_after_new_rows_of_a_table_that_the_stream_writes(
    harness: AirflowHarness, people: People, table: str
) -> None:
    dag = f"after__{table.replace('.', '__')}"
    wait(lambda: any(one.dag_id == dag for one in people.dags()), "the DAG is not parsed", BACK_SECONDS)
    harness.await_progress(after=0)
    before = {run.run_id for run in people.dag_runs(dag)}
    people.unpause(dag)
    unpaused_at = datetime.now(UTC)

    wait(lambda: any(run.run_id not in before for run in people.dag_runs(dag)), "nothing follows", BACK_SECONDS)

    (run, *_) = [run for run in people.dag_runs(dag) if run.run_id not in before]
    finished = people.wait_for_run(dag, run.run_id, timeout_seconds=BACK_SECONDS)
    assert finished.state == "success"
    assert run.run_id.startswith("asset_triggered__")
    assert finished.start is not None
    print(f"{table}: its DAG ran {(finished.start - unpaused_at).total_seconds():.0f} s after it was unpaused")
    log = "\n".join(people.task_log(dag, run.run_id, "report", 1))
    assert f"'table': '{table.rpartition('.')[2]}'" in log
