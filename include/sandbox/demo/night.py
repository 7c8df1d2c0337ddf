"""The demo's night: maintenance of games by jobs of spark-submit, with aged files for VACUUM, and a backfill of gold.

What the night did is read from the results of its tasks and from the tables' logs, and compared with what was there
before: how many partitions had more than one file, which dates are closed, and which files were aged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control import paths
from deltaworks.operations.base import RESULTS_KEY
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.tables.lake import Lake
from sandbox.demo.aged_files import leave_aged_files
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.job_runs import FinishedJob
from sandbox.stack.home import StackHome

PIPELINE = "games"
TABLE = "events"
NIGHT = dag_id(PIPELINE, "maintenance")
GOLD = dag_id(PIPELINE, "gold")
#: More than the driver of a job deletes itself, so that executors do.
AGED_FILES = 40
#: The steps of a night that are jobs.
SUBMITTED_STEPS = ("optimize_tables", "vacuum_tables", "rebuild_gold")


@dataclass(slots=True)
class Night:
    """What was there before the night, and what its run left."""

    aged: list[Path] = field(default_factory=list)
    backfilled: date | None = None
    results: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)

    def prepare(self, catalog: Catalog, home: StackHome) -> None:
        """Leaves aged files in a table's folder. No stream may write to it meanwhile."""
        self.aged = leave_aged_files(catalog, PIPELINE, TABLE, lake_folder=home.lake, files=AGED_FILES)

    def read(self, airflow: AirflowApi, ended: FinishedJob) -> None:
        """Reads what the run's steps did, and on which machine."""
        for step in SUBMITTED_STEPS:
            run = ended.run.run_id
            self.results[step] = list(airflow.xcom(NIGHT, run, step, RESULTS_KEY) or ())
            self.engines[step] = str(airflow.xcom(NIGHT, run, step, "engine") or "")

    def answer(self, sheet: AnswerSheet, catalog: Catalog) -> None:
        """Compares what the night did with what was there."""
        jobs = sum(engine.startswith("spark-submit") for engine in self.engines.values())
        sheet.check_equal(PIPELINE, "night: steps that spark-submit ran", jobs, len(SUBMITTED_STEPS))
        optimized = self.results["optimize_tables"]
        before, after = (sum(int(row.get(f"files_{when}", 0)) for row in optimized) for when in ("before", "after"))
        sheet.check_between(PIPELINE, f"night: {before:,} files merged to", after, 1, before - 1)
        closed = sheet.fetch_one(
            f"SELECT count(DISTINCT event_date) FROM {PIPELINE}.{TABLE} WHERE event_date < current_date"
        )
        ordered = sum(int(row.get("zordered", 0)) for row in optimized if row.get("table") == TABLE)
        sheet.check_equal(PIPELINE, f"night: closed dates of {TABLE} in Z-order", ordered, closed)
        sheet.check_equal(
            PIPELINE, f"night: Z-order of {TABLE} in Delta's history", _order(catalog), _declared_order(catalog)
        )
        left = [path for path in self.aged if path.exists()]
        deleted = sum(int(row.get("files", 0)) for row in self.results["vacuum_tables"])
        sheet.check_equal(PIPELINE, "night: aged files that VACUUM deleted", (deleted, len(left)), (len(self.aged), 0))


def _order(catalog: Catalog) -> list[str]:
    """Returns the columns of the newest OPTIMIZE with an order in the table's history."""
    opened = Lake(catalog.environment.lake).open(paths.table(PIPELINE, TABLE))
    assert opened is not None
    orders = (
        json.loads(str(commit.get("operationParameters", {}).get("zOrderBy") or "[]")) for commit in opened.history()
    )
    return next((list(columns) for columns in orders if columns), [])


def _declared_order(catalog: Catalog) -> list[str]:
    return list(next(table.zorder_by for table in catalog.pipeline(PIPELINE).tables if table.name == TABLE))


def backfill_date(dates: Sequence[date]) -> date:
    """Returns the date that the demo backfills: the middle one."""
    return sorted(dates)[len(dates) // 2]
