"""The demo's recovery: a restore of one table to an earlier version, and a reprocess that brings its rows back.

A person approves the restore, as the environment asks. Before and after, the rows are counted in the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from deltalake import DeltaTable

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control import paths
from deltaworks.errors import TransientError
from deltaworks.operations.base import APPROVE_TASK
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from sandbox.demo.answers import AnswerSheet

PIPELINE, TABLE = "games", "app_update"
RESTORE, REPROCESS, REPLAY = (
    get_operation(name).dag_id(PIPELINE) for name in ("restore", "reprocess", "replay_quarantine")
)
_RUN_SECONDS = 300.0


@dataclass(slots=True)
class Recovery:
    """The rows of a table, and of quarantine, around a restore, a reprocess and a replay."""

    landed: int = 0
    at_version: int = 0
    restored: int = 0
    reprocessed: int = 0
    quarantined: int = 0
    replayed: int = 0

    def run(self, airflow: AirflowApi, catalog: Catalog) -> None:
        """Restores the table to its newest version with fewer rows, reads its objects again, and replays quarantine.

        Raises:
            TransientError: DAG_RUN_FAILED, DAG_RUN_TIMEOUT.
        """
        lake, key = Lake(catalog.environment.lake), paths.table(PIPELINE, TABLE)
        opened = lake.open(key)
        assert opened is not None
        self.landed = _rows(opened)
        version = opened.version()
        while version > 0 and _rows(opened) == self.landed:
            version -= 1
            opened.load_as_version(version)
        self.at_version = _rows(opened)
        form = {"table": TABLE, "to_version": version, "repair": "none", "reason": "the demo", "dry_run": False}
        _run(airflow, RESTORE, form | {"action": "restore"}, approve=True)
        self.restored = _count(lake, key)
        _run(airflow, REPROCESS, {"from_start": True, "tables": [TABLE], "dry_run": False})
        self.reprocessed = _count(lake, key)
        self.quarantined = _count(lake, paths.table(PIPELINE, "quarantine"))
        _run(airflow, REPLAY, {"action": "quarantine", "dry_run": False})
        self.replayed = _count(lake, paths.table(PIPELINE, "quarantine"))

    def answer(self, sheet: AnswerSheet) -> None:
        """Compares the rows with those of the version and those that had landed."""
        sheet.check_equal(PIPELINE, f"restore of {TABLE} to an earlier version: rows", self.restored, self.at_version)
        sheet.check_equal(PIPELINE, f"reprocess of {TABLE}: rows again", self.reprocessed, self.landed)
        question = "replay of quarantine: rows that the declaration still refuses"
        sheet.check_equal(PIPELINE, question, self.replayed, self.quarantined)


def _count(lake: Lake, key: str) -> int:
    opened = lake.open(key)
    assert opened is not None
    return _rows(opened)


def _rows(opened: DeltaTable) -> int:
    return int(sum(opened.get_add_actions(flatten=True).column("num_records").to_pylist()))


def _run(airflow: AirflowApi, dag_id: str, form: dict[str, object], *, approve: bool = False) -> None:
    run, end = airflow.trigger(dag_id, conf=form), time.monotonic() + _RUN_SECONDS
    while not (state := airflow.dag_run(dag_id, run.run_id)).is_finished:
        question = airflow.question(dag_id, run.run_id, APPROVE_TASK) if approve else None
        if question is not None and not question["response_received"]:
            airflow.answer(dag_id, run.run_id, APPROVE_TASK, "Approve")
        if time.monotonic() > end:
            raise TransientError("DAG_RUN_TIMEOUT", f"{dag_id} run {run.run_id} is still {state.state}.")
        time.sleep(1)
    if state.state != "success":
        raise TransientError("DAG_RUN_FAILED", f"{dag_id} run {run.run_id} ended {state.state}.")
