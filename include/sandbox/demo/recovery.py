"""The demo's recovery: a restore of one table to an earlier version, and a reprocess that brings its rows back.

A person approves the restore, as the environment asks. Before and after, the rows are counted in the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.table_swap import table_content
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.job_runs import Job, JobRuns

PIPELINE, TABLE = "games", "app_update"
RESTORE, REPROCESS, REPLAY = (
    get_operation(name).dag_id(PIPELINE) for name in ("restore", "reprocess", "replay_quarantine")
)


@dataclass(slots=True)
class Recovery:
    """The rows of a table, and of quarantine, around a restore, a reprocess and a replay."""

    landed: int = 0
    at_version: int = 0
    restored: int = 0
    reprocessed: int = 0
    quarantined: int = 0
    replayed: int = 0

    def run(self, jobs: JobRuns, catalog: Catalog) -> None:
        """Restores the table to its newest version with fewer rows, reads its objects again, and replays quarantine.

        Raises:
            TransientError: see `JobRuns.run`.
        """
        lake = Lake(catalog.environment.lake)
        opened = lake.open(paths.table(PIPELINE, TABLE))
        assert opened is not None
        self.landed = self.at_version = _rows_of(opened)
        while opened.version() > 0 and self.at_version == self.landed:
            opened.load_as_version(opened.version() - 1)
            self.at_version = _rows_of(opened)
        form = {"action": "restore", "table": TABLE, "to_version": opened.version(), "repair": "none"}
        jobs.run([Job(RESTORE, form | {"reason": "the demo", "dry_run": False}, approve=True)])
        self.restored = _rows(lake, TABLE)
        jobs.run([Job(REPROCESS, {"from_start": True, "tables": [TABLE], "dry_run": False})])
        self.reprocessed = _rows(lake, TABLE)
        self.quarantined = _rows(lake, "quarantine")
        jobs.run([Job(REPLAY, {"action": "quarantine", "dry_run": False})])
        self.replayed = _rows(lake, "quarantine")

    def answer(self, sheet: AnswerSheet) -> None:
        """Compares the rows with those of the version and those that had landed."""
        sheet.check_equal(PIPELINE, f"restore of {TABLE} to an earlier version: rows", self.restored, self.at_version)
        sheet.check_equal(PIPELINE, f"reprocess of {TABLE}: rows again", self.reprocessed, self.landed)
        question = "replay of quarantine: rows that the declaration still refuses"
        sheet.check_equal(PIPELINE, question, self.replayed, self.quarantined)


def _rows(lake: Lake, table: str) -> int:
    opened = lake.open(paths.table(PIPELINE, table))
    assert opened is not None
    return _rows_of(opened)


def _rows_of(opened: DeltaTable) -> int:
    rows = table_content(opened).rows
    assert rows is not None
    return rows
