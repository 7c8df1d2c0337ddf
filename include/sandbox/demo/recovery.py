"""The demo's recovery: a changed declaration, a replay of quarantine and a reprocess under it, and a restore.

A person approves the restore, as the environment asks. Before and after, the rows are counted in the tables.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.operations.registry import get_operation
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.table_swap import table_content
from generator.truth import GamesTruth
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.earlier_declaration import CHANGED_TABLE, NEW_COLUMN, NEW_TABLE, PIPELINE
from sandbox.demo.job_runs import Job
from sandbox.stack.supervisor import wait_until

CONTROL, RESTORE, REPROCESS, REPLAY = (
    get_operation(name).dag_id(PIPELINE) for name in ("control", "restore", "reprocess", "replay_quarantine")
)
_STREAM_SECONDS = 180.0
_MAX_OPEN_ROWS = 1_000_000


@dataclass(slots=True)
class Recovery:
    """The rows of two tables, and the open rows of quarantine, around a restore, a reprocess and a replay."""

    landed: int = 0
    at_version: int = 0
    restored: int = 0
    reprocessed: int = 0
    refused: int = 0

    def jobs(self, catalog: Catalog) -> list[Job]:
        """Returns jobs that restart the stream, which then follows the changed declaration, restore a table to its
        newest version with fewer rows, read its objects again, and replay quarantine. Rows are counted in between.

        Args:
            catalog: with the changed declaration.
        """
        lake = Lake(catalog.environment.lake)
        opened = lake.open(paths.table(PIPELINE, CHANGED_TABLE))
        assert opened is not None
        self.landed = self.at_version = _rows_of(opened)
        while opened.version() > 0 and self.at_version == self.landed:
            opened.load_as_version(opened.version() - 1)
            self.at_version = _rows_of(opened)
        self.refused = len(_open_rows(lake))

        epoch = _stream_epoch(catalog)

        def count_restored() -> None:
            self.restored = _rows(lake, CHANGED_TABLE)
            wait_until(lambda: _stream_epoch(catalog) > epoch, seconds=_STREAM_SECONDS, poll_seconds=0.5)

        def count_reprocessed() -> None:
            self.reprocessed = _rows(lake, CHANGED_TABLE)

        form = {"action": "restore", "table": CHANGED_TABLE, "to_version": opened.version(), "repair": "none"}
        form |= {"reason": "the demo", "dry_run": False}
        again = {"from_start": True, "tables": [CHANGED_TABLE], "dry_run": False}
        return [
            Job(CONTROL, {"action": "restart", "reason": "the demo has changed the declaration"}),
            Job(RESTORE, form, approve=True, then=count_restored),
            Job(REPROCESS, again, then=count_reprocessed),
            Job(REPLAY, {"action": "quarantine", "dry_run": False}),
        ]

    def answer(self, sheet: AnswerSheet, catalog: Catalog, truth: GamesTruth, *, posted: bool) -> None:
        """Compares the rows with those of the version, those that had landed, and the generator's."""
        check, new_rows = sheet.check_equal, truth.bronze_rows[NEW_TABLE]
        check(PIPELINE, f"restore of {CHANGED_TABLE} to an earlier version: rows", self.restored, self.at_version)
        check(PIPELINE, f"reprocess of {CHANGED_TABLE}: rows again", self.reprocessed, self.landed)
        filled = sheet.fetch_one(f"SELECT count({NEW_COLUMN}) FROM {PIPELINE}.{CHANGED_TABLE} WHERE source = 'paid'")
        paid = sheet.fetch_one(f"SELECT count(*) FROM {PIPELINE}.{CHANGED_TABLE} WHERE source = 'paid'")
        check(PIPELINE, f"the same under a changed declaration: values of the new column {NEW_COLUMN}", filled, paid)
        reasons = Counter(_reason(row) for row in _open_rows(Lake(catalog.environment.lake)))
        expected = truth.collector_quarantine_reasons if posted else truth.quarantine_reasons
        landed = self.refused - reasons.total()
        check(PIPELINE, f"replay of quarantine: rows landed in the new table {NEW_TABLE}", landed, new_rows)
        sheet.check_rows(PIPELINE, "quarantined rows by reason", dict(reasons), expected)


def _reason(row: dict[str, Any]) -> str:
    """Returns the first reason. A row of the new table that a replay refused has the reason of its arrival, which was
    that no table was declared; what it lacks is a required value.
    """
    return "missing_required" if row["event_name"] == NEW_TABLE else str(row["reasons"][0]["code"])


def _rows(lake: Lake, table: str) -> int:
    opened = lake.open(paths.table(PIPELINE, table))
    assert opened is not None
    return _rows_of(opened)


def _rows_of(opened: DeltaTable) -> int:
    rows = table_content(opened).rows
    assert rows is not None
    return rows


def _stream_epoch(catalog: Catalog) -> int:
    """Returns the epoch of the last stream that polls for events or has read some; 0 without one."""
    key = paths.heartbeat(paths.pipeline_control(PIPELINE))
    beat = read_heartbeat(open_objects(catalog.environment.lake), key)
    return beat.epoch if beat is not None and beat.state in ("idle", "running") else 0


def _open_rows(lake: Lake) -> list[dict[str, Any]]:
    return Quarantine(lake, PIPELINE).rows(QuarantineFilter(), limit=_MAX_OPEN_ROWS)
