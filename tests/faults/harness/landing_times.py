"""Measures the time events take from landing to bronze, from the commits of a table."""

from __future__ import annotations

import json

from deltaworks.control import paths
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.oracle import commits_of


def percentile(values: list[float], share: float) -> float:
    """Returns the value below which a `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def bronze_times(stage: FaultProject) -> dict[int, float]:
    """Returns when each object's events became readable in bronze: `seq` -> seconds since the epoch."""
    key = paths.table(PIPELINE, "events")
    committed: dict[int, float] = {}
    for actions in commits_of(stage.lake, key):
        said = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        made = json.loads(said.get("userMetadata", "{}"))
        if made.get("operation") == "append":
            committed[int(made["batch"])] = said["timestamp"] / 1000
    rows = stage.lake.rows(key, columns=["_seq", "_batch_id"])
    if rows is None:
        return {}
    pairs = set(zip(rows.column("_seq").to_pylist(), rows.column("_batch_id").to_pylist(), strict=True))
    return {seq: committed[batch] for seq, batch in pairs if batch in committed}
