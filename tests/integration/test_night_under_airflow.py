"""A night under Airflow's own processes: jobs that go on after a broken table, and the same in `auto`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, write_files
from sandbox.demo.aged_files import AGED_HOURS, leave_aged_files
from sandbox.demo.landing_sink import landing_sink
from sandbox.servers.landing import LAKE_BUCKET
from sandbox.stack.home import StackHome
from tests.integration.airflow_harness import linked_project, people_of, running_stack, wait
from tests.integration.airflow_people import People

NIGHT = dag_id("shop", "maintenance")
STEPS = ("optimize_tables", "vacuum_tables", "rebuild_gold")
#: More than the driver deletes itself.
AGED_FILES = 40
FILES, ROWS = 6, 50
SHOP = """
pipeline: shop
description: What the test sends.
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: shop/}
event: {name: {path: kind}, time: {path: at, unit: epoch_seconds}, id: number}
tables:
  - name: clicks
    when: {kind: click}
    columns: [{name: number, path: number, type: long, required: true}]
    partition_by: [event_date]
    zorder_by: [number]
  - {name: views, when: {kind: view}, columns: [{name: number, path: number, type: long}], partition_by: [event_date]}
  - {name: taps, catch_all: true, columns: [{name: number, path: number, type: long}], partition_by: [event_date]}
stream: {trigger_seconds: 1}
gold:
  lag: 7d
  tables: [{name: per_day, sql: per_day.sql, reads: [clicks], partition_by: event_date}]
maintenance: {zorder_from_bytes: 0}
"""
PER_DAY = "SELECT event_date, count(*) AS clicks FROM clicks GROUP BY event_date"


@dataclass
class Stage:
    """The running stack with its landed tables, the aged files of two of them, and the broken file of another."""

    home: StackHome
    catalog: Catalog
    people: People
    aged: list[Path]
    pinned: list[Path]
    broken: Path
    content: bytes

    def run(self, name: str, **conf: Any) -> str:
        """Runs a night; returns the state in which it ended."""
        self.people.trigger(NIGHT, conf={"dry_run": False, **conf}, run_id=name)
        return str(self.people.wait_for_run(NIGHT, name, timeout_seconds=400).state)

    def states(self, name: str) -> dict[str, str | None]:
        return {task.task_id: task.state for task in self.people.task_instances(NIGHT, name)}

    def engines(self, name: str) -> dict[str, str]:
        return {step: str(self.people.xcom(NIGHT, name, step, "engine")) for step in STEPS}

    def results(self, name: str, step: str) -> dict[str, dict[str, Any]]:
        return {row["table"]: row for row in self.people.xcom(NIGHT, name, step, "results")}


def rows(catalog: Catalog, table: str) -> int:
    found = Lake(catalog.environment.lake).rows(paths.table("shop", table))
    return 0 if found is None else int(found.num_rows)


def land(catalog: Catalog) -> None:
    """Lands as many files per table as objects, all of one closed day."""
    put = landing_sink(catalog.environment.landing)
    for number in range(FILES):
        events = [
            {"kind": kind, "number": number * ROWS + row, "at": 1_700_000_000 + row}
            for kind in ("click", "view")
            for row in range(ROWS)
        ]
        put(f"shop/2023/11/14/22/{number}.json", "\n".join(map(json.dumps, events)).encode())
        landed = (number + 1) * ROWS
        wait(lambda landed=landed: rows(catalog, "clicks") >= landed, f"{landed} rows have not landed", 240)  # type: ignore[misc]


def broken_file(home: StackHome) -> Path:
    folder = home.lake / LAKE_BUCKET / paths.table("shop", "views")
    return next(path for path in sorted(folder.rglob("*.parquet")) if "_delta_log" not in path.parts)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    project = linked_project(tmp_path_factory.mktemp("project"))
    write_files(project, {"include/pipelines/shop/pipeline.yaml": SHOP, "include/pipelines/shop/per_day.sql": PER_DAY})
    with running_stack(project, variables={SCHEDULES_VARIABLE: "off"}) as (home, catalog), people_of(home) as people:
        land(catalog)
        aged = leave_aged_files(catalog, "shop", "clicks", lake_folder=home.lake, files=AGED_FILES)
        leave_aged_files(catalog, "shop", "taps", lake_folder=home.lake, files=1)
        pinned = replaced_files(home, catalog)
        PipelineHome.open(catalog.environment.lake, "shop").readers.pin("taps", reader="slow", version=0, hours=1)
        hold_since_long(home)
        broken = broken_file(home)
        content = broken.read_bytes()
        broken.write_bytes(content[: len(content) // 2])
        yield Stage(home, catalog, people, aged, pinned, broken, content)


def replaced_files(home: StackHome, catalog: Catalog) -> list[Path]:
    """Merges the files of a table as if it had been long ago; returns the paths of those that were replaced."""
    opened = present(Lake(catalog.environment.lake).open(paths.table("shop", "taps")))
    folder = home.lake / LAKE_BUCKET / paths.table("shop", "taps")
    before = [folder / path for path in opened.get_add_actions(flatten=True).column("path").to_pylist()]
    opened.optimize.compact()
    set_back(folder / "_delta_log" / f"{opened.version():020d}.json", hours=AGED_HOURS)
    for path in before:
        os.utime(path, (time.time() - AGED_HOURS * 3600,) * 2)
    return before


def hold_since_long(home: StackHome) -> None:
    """Sets the time of the pinned version back, so that its reader needs more than the table's log remembers."""
    set_back(home.lake / LAKE_BUCKET / paths.table("shop", "taps") / "_delta_log" / f"{0:020d}.json", hours=300)


def set_back(commit: Path, *, hours: int) -> None:
    """Sets the times in a commit back."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] -= hours * 3_600_000
        if "remove" in action:
            action["remove"]["deletionTimestamp"] -= hours * 3_600_000
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def optimize_commits(catalog: Catalog, table: str) -> list[dict[str, Any]]:
    opened = present(Lake(catalog.environment.lake).open(paths.table("shop", table)))
    return [commit for commit in opened.history() if commit["operation"] == "OPTIMIZE"]


@pytest.mark.timeout(900)
def test_a_night_of_jobs_goes_on_after_a_broken_table_and_names_it(stage: Stage) -> None:
    assert stage.run("night") == "failed"

    states = stage.states("night")
    assert {name for name, state in states.items() if state == "failed"} == {"optimize_tables", "record_night"}
    assert states["vacuum_tables"] == states["rebuild_gold"] == states["snapshot_health"] == "success"
    assert all(engine.startswith("spark-submit on ") for engine in stage.engines("night").values())
    (task,) = [one for one in stage.people.task_instances(NIGHT, "night") if one.task_id == "optimize_tables"]
    assert task.try_number == 1, "the error cannot pass"
    log = "\n".join(stage.people.task_log(NIGHT, "night", "record_night", 1))
    assert "MAINTENANCE_STEPS_FAILED" in log
    assert "optimize_tables: views: " in log
    assert stage.broken.name in log


def test_the_night_sorted_by_the_submitted_application(stage: Stage) -> None:
    (commit,) = optimize_commits(stage.catalog, "clicks")

    assert json.loads(commit["operationParameters"]["zOrderBy"]) == ["number"]
    assert "Apache-Spark" in commit["engineInfo"]
    assert stage.results("night", "optimize_tables")["clicks"]["zordered"] == 1
    assert rows(stage.catalog, "clicks") == FILES * ROWS


def test_vacuum_deleted_exactly_the_aged_files_that_nobody_holds(stage: Stage) -> None:
    results = stage.results("night", "vacuum_tables")

    assert not any(path.exists() for path in stage.aged)
    assert results["clicks"]["files"] == AGED_FILES
    assert results["clicks"]["engine"].startswith("Spark's executors")
    assert all(path.exists() for path in stage.pinned)
    assert results["taps"]["skipped"]
    assert "the reader slow" in results["taps"]["reason"]
    assert [rows(stage.catalog, table) for table in ("clicks", "taps")] == [FILES * ROWS, 2 * FILES * ROWS]


def test_gold_is_right_after_the_night(stage: Stage) -> None:
    found = Lake(stage.catalog.environment.lake).rows(paths.table("shop", "per_day"))

    assert found is not None
    assert found.column("clicks").to_pylist() == [FILES * ROWS]


@pytest.mark.timeout(900)
def test_auto_submits_where_there_is_work_and_nothing_where_there_is_none(stage: Stage) -> None:
    stage.broken.write_bytes(stage.content)

    assert stage.run("mended", maintenance_on="auto") == "success"
    first = stage.engines("mended")
    assert first["optimize_tables"].startswith("spark-submit on ")
    assert stage.results("mended", "optimize_tables")["views"]["compacted"] == 1
    assert first["rebuild_gold"].startswith("a process without Spark")

    assert stage.run("idle", maintenance_on="auto") == "success"
    assert {engine.split(",")[0].split(" (")[0] for engine in stage.engines("idle").values()} == {
        "a process without Spark"
    }
