"""The demo's night: maintenance of games by jobs of spark-submit, with aged files for VACUUM, and a backfill of gold.

What the night did is read from the results of its tasks and from the tables' logs, and compared with what was there
before: how many partitions had more than one file, which dates are closed, and which files were aged.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.errors import TransientError
from deltaworks.operations.base import ENGINE_KEY, RESULTS_KEY
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.tables.lake import Lake
from sandbox.demo.aged_files import leave_aged_files
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.job_runs import FinishedJob
from sandbox.stack.home import StackHome

PIPELINE = "games"
TABLE = "events"
GOLD_TABLE = "events_per_hour"
_BACKFILL_SECONDS = 300.0
NIGHT = dag_id(PIPELINE, "maintenance")
GOLD = dag_id(PIPELINE, "gold")
#: More than the driver of a job deletes itself, so that executors do.
AGED_FILES = 40
#: The steps of a night that are jobs.
SUBMITTED_STEPS = ("optimize_tables", "vacuum_tables", "rebuild_gold")


@dataclass(slots=True)
class Night:
    """What was there before the night, and the results of its run."""

    aged: list[Path] = field(default_factory=list)
    unordered: int = 0
    backfilled: date | None = None
    results: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    rebuilt: list[Mapping[str, Any]] = field(default_factory=list)

    def prepare(self, catalog: Catalog, home: StackHome) -> None:
        """Leaves aged files in a table's folder. No stream may write to it meanwhile."""
        self.aged = leave_aged_files(catalog, PIPELINE, TABLE, lake_folder=home.lake, files=AGED_FILES)
        self.unordered = _unordered_dates(catalog)

    def read(self, airflow: AirflowApi, ended: FinishedJob) -> None:
        """Reads what the run's steps did, and on which machine."""
        run = ended.run.run_id
        for step in SUBMITTED_STEPS:
            self.results[step] = list(airflow.xcom(NIGHT, run, step, RESULTS_KEY) or ())
            self.engines[step] = str(airflow.xcom(NIGHT, run, step, ENGINE_KEY) or "")

    def backfill(self, airflow: AirflowApi, catalog: Catalog) -> None:
        """Rebuilds gold of one date through Airflow's own backfill.

        Raises:
            TransientError: DAG_RUN_TIMEOUT, DAG_RUN_FAILED.
        """
        rows = Lake(catalog.environment.lake).rows(paths.table(PIPELINE, GOLD_TABLE), columns=["event_date"])
        dates = sorted(set(rows.column("event_date").to_pylist())) if rows is not None else []
        self.backfilled = dates[len(dates) // 2]
        airflow.create_backfill(GOLD, self.backfilled, self.backfilled)
        end = time.monotonic() + _BACKFILL_SECONDS
        while not (runs := [run for run in airflow.backfill_runs(GOLD) if run.is_finished]):
            if time.monotonic() > end:
                raise TransientError("DAG_RUN_TIMEOUT", f"The backfill of {GOLD} has no finished run.")
            time.sleep(1)
        if runs[0].state != "success":
            raise TransientError("DAG_RUN_FAILED", f"The backfill {runs[0].run_id} of {GOLD} ended {runs[0].state}.")
        self.rebuilt = list(airflow.xcom(GOLD, runs[0].run_id, "rebuild_gold", RESULTS_KEY) or ())

    def answer(self, sheet: AnswerSheet, catalog: Catalog) -> None:
        """Compares what night and backfill did with what was there."""
        count = f"SELECT count(*) FROM {PIPELINE}.{GOLD_TABLE} WHERE event_date = DATE '{self.backfilled}'"
        built = next((row for row in self.rebuilt if row.get("table") == GOLD_TABLE), {})
        rebuilt = (built.get("partitions"), built.get("rows"))
        truth = ([str(self.backfilled)], sheet.fetch_one(count))
        sheet.check_equal(PIPELINE, f"backfill by Airflow: date and rows of {GOLD_TABLE}", rebuilt, truth)
        jobs = sum(engine.startswith("spark-submit") for engine in self.engines.values())
        sheet.check_equal(PIPELINE, "night: steps that spark-submit ran", jobs, len(SUBMITTED_STEPS))
        optimized = self.results["optimize_tables"]
        before, after = (sum(int(row.get(f"files_{when}", 0)) for row in optimized) for when in ("before", "after"))
        sheet.check_between(PIPELINE, f"night: {before:,} files merged to", after, 1, before - 1)
        ordered = sum(int(row.get("zordered", 0)) for row in optimized if row.get("table") == TABLE)
        sheet.check_equal(PIPELINE, f"night: dates of {TABLE} put in Z-order", ordered, self.unordered)
        sheet.check_equal(
            PIPELINE, f"night: Z-order of {TABLE} in Delta's history", _order(catalog), _declared_order(catalog)
        )
        remaining = [path for path in self.aged if path.exists()]
        deleted = sum(int(row.get("files", 0)) for row in self.results["vacuum_tables"])
        sheet.check_equal(
            PIPELINE, "night: aged files that VACUUM deleted", (deleted, len(remaining)), (len(self.aged), 0)
        )


def _unordered_dates(catalog: Catalog) -> int:
    """Returns the number of dates before today with several files, and large enough for an order."""
    opened = Lake(catalog.environment.lake).open(paths.table(PIPELINE, TABLE))
    assert opened is not None
    files = opened.get_add_actions(flatten=True)
    sizes = defaultdict[str, list[int]](list)
    for day, size in zip(
        files.column("partition.event_date").to_pylist(), files.column("size_bytes").to_pylist(), strict=True
    ):
        sizes[str(day)].append(size)
    least, today = catalog.pipeline(PIPELINE).maintenance.zorder_from_bytes, utc_now().date().isoformat()
    return sum(len(own) > 1 and sum(own) > least for day, own in sizes.items() if day < today)


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
