"""Gold that reads another pipeline's gold under real Airflow processes: built after it, and only for changed dates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pytest

from deltaworks.airflow_client.api import DagRun
from deltaworks.control import paths
from deltaworks.operations.dag_forms import unavailable_reason
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.tables.lake import Lake
from deltaworks.testing import table_rows, write_files
from sandbox.demo.landing_sink import landing_sink
from sandbox.stack.home import StackHome
from tests.integration.airflow_harness import BACK_SECONDS, clicks_project, people_of, running_stack, wait
from tests.integration.airflow_people import People

pytestmark = pytest.mark.timeout(600)
BUILD_SECONDS = 300.0
CLICKS_GOLD, DIGEST_GOLD = dag_id("clicks", "gold"), dag_id("digest", "gold")
# Airflow cannot backfill a DAG without a schedule, so this one has a very rare one.
PER_DAY = """
gold:
  lag: 7d
  tables: [{name: per_day, sql: per_day.sql, reads: [clicks], partition_by: event_date}]
"""
#: Reads a table, which has neither objects nor records. Its own gold has no schedule.
DIGEST = """
pipeline: digest
description: What the clicks come to.
owner: tests
source: {kind: delta, pipeline: clicks, table: clicks}
event:
  name: {constant: row}
  time: {path: event_time, unit: iso8601}
tables: [{name: rows, catch_all: true, columns: [{name: number, path: number, type: long}]}]
stream: {trigger_seconds: 5, lease_ttl_seconds: 6}
gold:
  tables: [{name: doubled, sql: doubled.sql, reads: [clicks.per_day], partition_by: event_date}]
"""
DOUBLED = "SELECT event_date, 2 * clicks AS twice FROM clicks__per_day"
DATES = [date(2023, 11, day) for day in (14, 15, 16)]


@dataclass
class AirflowHarness:
    """Two pipelines, and the number of landed clicks per date."""

    home: StackHome
    catalog: Catalog
    landed: Counter[date] = field(default_factory=Counter)

    def land(self, day: date, count: int) -> None:
        """Lands clicks of a date and waits for their rows."""
        noon, first = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()), self.landed.total()
        lines = [json.dumps({"number": first + number, "at": noon + number}) for number in range(count)]
        landing_sink(self.catalog.environment.landing)(f"clicks/{first:06}.json", "\n".join(lines).encode())
        self.landed[day] += count
        wait(lambda: len(self.rows("clicks", "clicks")) >= self.landed.total(), "clicks have not landed", BACK_SECONDS)

    @property
    def lake(self) -> Lake:
        return Lake(self.catalog.environment.lake)

    def rows(self, pipeline: str, table: str) -> list[dict[str, Any]]:
        return table_rows(self.lake, pipeline, table)

    def check(self) -> None:
        """Checks both gold tables against the landed clicks."""
        per_day = Counter({row["event_date"]: row["clicks"] for row in self.rows("clicks", "per_day")})
        assert per_day == self.landed
        twice = Counter({row["event_date"]: row["twice"] for row in self.rows("digest", "doubled")})
        assert twice == Counter({day: 2 * count for day, count in self.landed.items()})

    def version(self, pipeline: str, table: str) -> int:
        opened = self.lake.open(paths.table(pipeline, table))
        return -1 if opened is None else opened.version()

    def dates_written(self, pipeline: str, table: str, *, after: int) -> list[set[str]]:
        """Returns the dates written by each commit after a version, oldest first."""
        key = paths.table(pipeline, table)
        folder = self.home.lake / self.catalog.environment.lake.bucket / key / "_delta_log"
        written = []
        for version in range(after + 1, self.version(pipeline, table) + 1):
            actions = [json.loads(line) for line in (folder / f"{version:020}.json").read_text().splitlines()]
            adds = [action["add"] for action in actions if "add" in action]
            written.append({add["partitionValues"]["event_date"] for add in adds})
        return written


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    project = clicks_project(tmp_path_factory.mktemp("project"), more=PER_DAY)
    write_files(project / "include/pipelines/digest", {"pipeline.yaml": DIGEST, "doubled.sql": DOUBLED})
    with running_stack(project) as (home, catalog):
        harness = AirflowHarness(home, catalog)
        for day, count in zip(DATES, (30, 20, 10), strict=True):
            harness.land(day, count)
        yield harness


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with people_of(harness.home) as people:
        yield people


def followed(people: People) -> list[DagRun]:
    """Returns the runs since the last build of the other pipeline's gold, newest first."""
    return [run for run in people.dag_runs(DIGEST_GOLD, limit=50) if run.run_id.startswith("asset_triggered__")]


def await_followed(people: People, runs: int) -> None:
    """Waits until this many such runs have succeeded."""
    wait(lambda: len(followed(people)) >= runs, "nothing follows the build", BUILD_SECONDS)
    for run in followed(people):
        assert people.wait_for_run(DIGEST_GOLD, run.run_id, timeout_seconds=BUILD_SECONDS).state == "success"


def test_gold_is_built_after_the_other_pipelines_gold_it_reads(harness: AirflowHarness, people: People) -> None:
    assert harness.rows("digest", "doubled") == []

    people.run(CLICKS_GOLD, "first", {}, seconds=BUILD_SECONDS)
    await_followed(people, 1)

    harness.check()


def test_only_changed_dates_are_rebuilt_in_both(harness: AirflowHarness, people: People) -> None:
    versions = {table: harness.version(*table) for table in (("clicks", "per_day"), ("digest", "doubled"))}
    harness.land(DATES[1], 7)

    people.run(CLICKS_GOLD, "second", {}, seconds=BUILD_SECONDS)
    await_followed(people, 2)

    harness.check()
    for table, version in versions.items():
        assert harness.dates_written(*table, after=version) == [{str(DATES[1])}]


def test_a_build_without_changes_makes_its_followers_write_nothing(harness: AirflowHarness, people: People) -> None:
    before = harness.version("digest", "doubled")

    people.run(CLICKS_GOLD, "third", {}, seconds=BUILD_SECONDS)
    await_followed(people, 3)

    assert harness.version("digest", "doubled") == before


def test_a_backfill_by_the_api_builds_only_the_partitions_of_its_dates(harness: AirflowHarness, people: People) -> None:
    before = harness.version("clicks", "per_day")

    people.create_backfill(CLICKS_GOLD, DATES[1], DATES[2])

    def runs() -> list[DagRun]:
        return [run for run in people.dag_runs(CLICKS_GOLD, limit=50) if run.run_id.startswith("backfill__")]

    wait(lambda: len(runs()) == 2, "Airflow makes no run for each date", 60)
    for run in runs():
        assert people.wait_for_run(CLICKS_GOLD, run.run_id, timeout_seconds=BUILD_SECONDS).state == "success"
    assert harness.dates_written("clicks", "per_day", after=before) == [{str(DATES[1])}, {str(DATES[2])}]
    harness.check()


def test_an_unavailable_operation_has_no_dag(harness: AirflowHarness, people: People) -> None:
    dags = {dag.dag_id for dag in people.dags()}
    assert people.import_errors() == ()

    for name, spec in harness.catalog.pipelines.items():
        offered = {item.kind for item in OPERATIONS.values() if item.scope == "pipeline" and item.dag_id(name) in dags}
        expected = {
            item.kind for item in OPERATIONS.values() if item.scope == "pipeline" and not unavailable_reason(item, spec)
        }
        assert offered == expected - {"find_lost_events"}
    assert {"clicks__reprocess", "clicks__recover", "digest__restore", "digest__gold"} <= dags
    absent = {"digest__reprocess", "digest__mutations", "clicks__mutations", "landing__clean"}
    assert not dags & absent
