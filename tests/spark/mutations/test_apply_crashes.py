"""The next run completes a batch that crashed at any step; later requests belong to the batch after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.mutations.apply import MutationRun
from tests.crashes import Crash, crash_at
from tests.spark.mutations.mutation_harness import PIPELINE, START, TOLD, MutationHarness, declared

pytestmark = pytest.mark.integration
POINTS = (
    "fixed",
    "resolved",
    "merged:activities",
    "optimized:activities",
    "notified:activities",
    "named",
    "stored",
    "ended",
)


def land(stage: MutationHarness, part: int) -> None:
    """Lands two rows, a rename that covers them, and a name."""
    base = {"org_id": "acme", "seq": part, "fields": None, "time": START.replace(hour=part + 1)}
    stage.land(
        rows=[
            {"org_id": "acme", "event_id": f"{part}-{late}", "id": "a", "time": START.replace(minute=2 * part + late)}
            for late in (0, 1)
        ],
        requests=[
            {**base, "op": "rename", "id": "a" if part == 0 else f"n{part - 1}", "new_id": f"n{part}"},
            {**base, "op": "rename_name", "id": f"n{part}", "new_id": None, "name": f"name {part}"},
        ],
    )


@pytest.mark.parametrize(
    ("engine", "points", "settings"),
    [
        ("spark", POINTS, {"small_merge_bytes": 0, "optimize_every": 1}),
        ("delta_rs", ("resolved", "merged:activities", "notified:activities"), {"small_merge_bytes": 1 << 20}),
    ],
)
def test_a_crash_after_any_step_is_recovered(
    spark: SparkSession, tmp_path: Path, engine: str, points: tuple[str, ...], settings: dict[str, Any]
) -> None:
    stage = MutationHarness(tmp_path, declared(**settings))
    for part, point in enumerate(points):
        land(stage, part)
        with pytest.raises(Crash):
            MutationRun(spark, stage.catalog, PIPELINE, fault=crash_at(point)).run()

    result = MutationRun(spark, stage.catalog, PIPELINE).run()

    last = len(points) - 1
    rows = stage.rows()
    assert len(rows) == 2 * len(points)
    assert {row["contact_id"] for row in rows} == {f"n{last}"}
    (name,) = [row for row in stage.rows("names") if not row["_deleted"]]
    assert (name["id"], name["name"]) == (f"n{last}", f"name {last}")
    told = [(row["batch"], key) for row in stage.rows(TOLD) for key in row["keys"]]
    assert len(set(told)) == len(told)
    assert len(result.completed) == (points[-1] != "ended")
    ends: list[Any] = [stage.batches.completion(number) for number in range(1, stage.batches.numbers()[1] + 1)]
    assert all(end is not None and end.outcome == "applied" for end in ends)
    # A batch completed after its intervals were stored may have nothing to merge.
    assert {table.engine for end in ends for table in end.tables} - {""} == {engine}
    assert MutationRun(spark, stage.catalog, PIPELINE).run().batches == []
