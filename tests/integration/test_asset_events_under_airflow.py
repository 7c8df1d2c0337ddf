"""DAGs of users that are scheduled on tables of a stream, under real Airflow processes: the DAG file of the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow_client.api import DagRun
from deltaworks.control import paths
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.dag_ids import asset_code
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, table_rows
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
DOCUMENTED = {"clicks": ("bronze", "games", "events"), "per_day": ("gold", "games", "events_per_hour")}


def described_asset(kind: str, pipeline: str, table: str) -> str:
    """Returns the asset as `deltaworks tables describe` prints it."""
    lake = load_catalog("local", root=PROJECT_ROOT).environment.lake
    return asset_code(kind, pipeline, table, uri=lake.uri(paths.table(pipeline, table)))


def documented_dags() -> str:
    """Returns the DAG file of the docs, for the tables of this project."""
    page = (PROJECT_ROOT / "docs/how-to/feed-other-systems.md").read_text()
    (code,) = re.findall(r"<!-- dag -->\n```python\n(.*?)```", page, re.DOTALL)
    for table, documented in DOCUMENTED.items():
        assert described_asset(*documented) in code
        code = code.replace(described_asset(*documented), described_asset(documented[0], "clicks", table))
    return str(code)


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


def events_counted(harness: AirflowHarness, table: str) -> int:
    if table == "clicks":
        return len(harness.rows())
    rows = table_rows(Lake(harness.catalog.environment.lake), "clicks", table, "clicks")
    return sum(row["clicks"] for row in rows)


def run_after_version(people: People, dag: str, version: int) -> tuple[DagRun, Mapping[str, Any]] | None:
    """Returns the first run with an event of a newer version of its table, and that event."""
    for run in sorted(people.dag_runs(dag), key=lambda run: run.run_id):
        for event in people.consumed_events(dag, run.run_id):
            if event["extra"]["version"] > version:
                return run, event
    return None


@pytest.mark.parametrize("table", DOCUMENTED)
def test_a_dag_runs_after_new_rows_of_a_table_that_the_stream_writes(
    harness: AirflowHarness, people: People, table: str
) -> None:
    dag = f"after__{DOCUMENTED[table][0]}__clicks__{table}"
    wait(lambda: any(one.dag_id == dag for one in people.dags()), "the DAG is not parsed", BACK_SECONDS)
    people.unpause(dag)
    harness.await_progress(after=0)
    sent, _, _ = harness.settle()
    wait(lambda: events_counted(harness, table) == sent, "not all events are counted", BACK_SECONDS)
    version = present(Lake(harness.catalog.environment.lake).open(paths.table("clicks", table))).version()
    sent_at = datetime.now(UTC)
    harness.send()

    wait(lambda: run_after_version(people, dag, version) is not None, "nothing follows", BACK_SECONDS)

    run, event = present(run_after_version(people, dag, version))
    finished = people.wait_for_run(dag, run.run_id, timeout_seconds=BACK_SECONDS)
    assert finished.state == "success"
    assert run.run_id.startswith("asset_triggered__")
    start, announced_at = present(finished.start), datetime.fromisoformat(event["timestamp"])
    print(
        f"{table}: its DAG started {(start - sent_at).total_seconds():.1f} s after an event was sent, "
        f"{(start - announced_at).total_seconds():.1f} s after the asset's event"
    )
    log = "\n".join(people.task_log(dag, run.run_id, "report", 1))
    assert f"'table': '{table}'" in log
    assert f"'version': {event['extra']['version']}" in log
