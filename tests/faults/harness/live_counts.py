"""Checks that a live table counts every event once and that every batch of its query is merged once.

A merge replaces older counts, so a repeated merge does not change the newest snapshot. A reader of the table's changes
receives its rows twice, however. Such rows count as *doubled*, like a file that two commits add.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.testing import table_rows
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.oracle import commits_of

LIVE = "hourly"
DECLARED = [
    {
        "name": LIVE,
        "reads": "events",
        "window_minutes": 60,
        "watermark_minutes": 180,
        "group_by": ["event_name"],
        "trigger_seconds": 1,
    }
]


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """Events not counted, events or merged rows counted twice, and the number of merges."""

    lost: int
    doubled: int
    merges: int


def owed_counts(stage: FaultProject) -> Counter[str]:
    """Returns how many events of each name the live table must count."""
    return Counter(table for table, _ in stage.owed if table in stage.kinds)


def seen_counts(stage: FaultProject) -> Counter[str]:
    """Returns how many events of each name the live table has counted."""
    seen: Counter[str] = Counter()
    for row in table_rows(stage.lake, PIPELINE, LIVE, "event_name", "events"):
        seen[row["event_name"]] += row["events"]
    return seen


def judge_live(stage: FaultProject) -> LiveVerdict:
    """Compares the counts with the landed events, and the merges with the batches."""
    owed, seen = owed_counts(stage), seen_counts(stage)
    merged: Counter[tuple[str, str]] = Counter()
    again = merges = 0
    for actions in commits_of(stage.lake, paths.table(PIPELINE, LIVE)):
        said = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        made = json.loads(said["userMetadata"])
        if made["operation"] != "live":
            continue
        batch = made["query"], str(made["batch"])
        if merged[batch]:
            again += _merged_rows(said["operation"], said["operationMetrics"])
        merged[batch] += 1
        merges += 1
    return LiveVerdict((owed - seen).total(), (seen - owed).total() + again, merges)


def _merged_rows(operation: str, metrics: Mapping[str, str]) -> int:
    if operation == "MERGE":
        return int(metrics["numTargetRowsInserted"]) + int(metrics["numTargetRowsUpdated"])
    return int(metrics["numOutputRows"]) - int(metrics["numCopiedRows"])
