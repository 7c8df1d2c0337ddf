"""Change readers over the tables of real streams and mutation batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.notifications import with_notifications
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.read_changes import read_changes
from deltaworks.tables.commit import Step
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, TOLD, MutationHarness
from tests.spark.mutations.test_apply import request, row

pytestmark = pytest.mark.integration


def tell(stage: MutationHarness, batch: int) -> None:
    """Returns the notifications that end a stream's batch, as the fan-out creates them."""
    rows = stage.lake.rows(paths.table(PIPELINE, DATA))
    assert rows is not None
    landed = rows.filter(pc.equal(rows.column("_batch_id"), batch))
    for name, told in with_notifications(stage.spec, [(DATA, landed)]):
        if name == TOLD:
            key = paths.table(PIPELINE, TOLD)
            table, made = stage.lake.open(key), user_metadata(pipeline=PIPELINE, batch=batch, operation="ingest")
            assert table is not None
            stage.lake.append(table, key, told, step=Step(f"{PIPELINE}/g1/{TOLD}", batch), user_metadata=made)


def states(rows: Any) -> list[tuple[str, str, bool]]:
    """Returns the rows read: event, contact, whether deleted."""
    found = rows.select("event_id", "contact_id", "_deleted").collect()
    return sorted((each["event_id"], each["contact_id"], bool(each["_deleted"])) for each in found)


def test_a_reader_sees_each_row_once_after_batches_of_both_kinds(spark: SparkSession, tmp_path: Path) -> None:
    stage, position = MutationHarness(tmp_path), None
    copy: dict[str, tuple[str, bool]] = {}

    def read() -> list[tuple[str, str, bool]]:
        nonlocal position
        changes = read_changes(spark, f"{PIPELINE}.{DATA}", position, tombstones=True, catalog=stage.catalog)
        position, found = changes.position, states(changes.rows)
        copy.update({event: (contact, deleted) for event, contact, deleted in found})
        return found

    stage.land(rows=[row("acme", "one", "a", 1), row("acme", "two", "c", 2), row("bolt", "three", "a", 1)])
    tell(stage, 1)
    assert read() == [("one", "a", False), ("three", "a", False), ("two", "c", False)]

    stage.land(
        rows=[row("acme", "late", "a", 2)],
        requests=[request("acme", 3, "rename", "a", "b"), request("bolt", 9, "delete", "a")],
    )
    MutationRun(spark, stage.catalog, PIPELINE).run()
    # The mutation batch announced its changes first; its rows are read when the stream's batch announces them.
    assert read() == [("late", "b", False), ("one", "b", False), ("three", "a", True)]
    tell(stage, 2)
    assert read() == []

    stage.land(requests=[request("bolt", 20, "undelete", "a"), request("acme", 9, "merge", "c", "b")])
    MutationRun(spark, stage.catalog, PIPELINE).run()
    assert read() == [("three", "a", False), ("two", "b", False)]

    assert copy == {each["event_id"]: (each["contact_id"], bool(each["_deleted"])) for each in stage.rows()}
