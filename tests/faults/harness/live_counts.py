"""Judges a live table: does it count every event once, and was every batch of its query merged once?

A merge puts whole counts in place of older ones, so one that is made twice leaves the newest snapshot as it was.
Whoever reads the table's changes meets its rows twice: they are *doubled*, as a file that two commits add is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deltaworks.control import paths
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
    """Events not counted, and events or merged rows that count twice; how many merges there were."""

    lost: int
    doubled: int
    merges: int


def owed_counts(stage: FaultProject) -> Counter[str]:
    """How many events of each name the live table owes."""
    return Counter(table for table, _ in stage.owed if table in stage.kinds)


def seen_counts(stage: FaultProject) -> Counter[str]:
    """How many events of each name it has counted."""
    rows = stage.lake.rows(paths.table(PIPELINE, LIVE), columns=["event_name", "events"])
    seen: Counter[str] = Counter()
    for row in [] if rows is None else rows.to_pylist():
        seen[row["event_name"]] += row["events"]
    return seen


def judge_live(stage: FaultProject) -> LiveVerdict:
    """Compare the counts with what is owed, and the merges with the batches."""
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
