"""Mutation batches that crash are completed; change readers and readers of deletion vectors see the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.notifications import with_notifications
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.read_changes import read_changes
from deltaworks.tables.commit import Step
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.query import connect
from deltaworks.tables.time_travel import TimeTravel
from tests.crashes import Crash, crash_at
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, START, TOLD, MutationHarness, declared
from tests.spark.mutations.test_apply import ended, request, row, run

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


@pytest.mark.integration
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


@pytest.mark.integration
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


KEY = paths.table(PIPELINE, DATA)


@pytest.mark.integration
def test_marked_rows_are_read_once_by_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(deletion_vectors=True))
    stage.land(rows=[row("acme", f"e{number}", f"c{number}", 1) for number in range(20)])
    stage.land(requests=[request("acme", 5, "rename", "c0", "z")])

    (first,) = run(spark, stage).batches

    folder = tmp_path / KEY
    assert (first.rows, first.tables[0].engine, first.tables[0].files_removed) == (1, "spark", 0)
    assert list(folder.rglob("deletion_vector_*.bin"))
    expected = {f"e{number}": (f"c{number}" if number else "z", False) for number in range(20)}
    assert {event: state[:2] for event, state in ended(stage).items()} == expected

    # The stream appends by delta-rs, and the next batch meets files with deletion vectors.
    stage.land(rows=[row("acme", "late", "c0", 2)], requests=[request("acme", 6, "delete", "z")])
    (second,) = run(spark, stage).batches

    assert second.rows == 2
    expected |= {"e0": ("z", True), "late": ("z", True)}
    assert {event: state[:2] for event, state in ended(stage).items()} == expected
    found = stage.lake.rows(KEY, columns=["event_id"], filters=ds.field("contact_id").isin(["z", "c7"]))
    assert found is not None
    assert sorted(found.column("event_id").to_pylist()) == ["e0", "e7", "late"]
    connection, _ = connect(stage.catalog)
    for _ in range(2):
        assert connection.execute(f"SELECT count(*), count(DISTINCT event_id) FROM {PIPELINE}.{DATA}").fetchall() == [
            (19, 19)
        ]
    assert spark.read.format("delta").load(stage.lake.storage.spark_uri(KEY)).count() == 21
    table = stage.lake.open(KEY)
    assert table is not None
    travel = TimeTravel(connection, stage.catalog)
    for version in range(table.version() + 1):
        past = f"SELECT event_id, contact_id FROM {PIPELINE}.{DATA} VERSION AS OF {version} ORDER BY 1"
        as_spark_has_it = (
            spark.read.format("delta")
            .option("versionAsOf", version)
            .load(stage.lake.storage.spark_uri(KEY))
            .where("NOT coalesce(_deleted, false)")
            .select("event_id", "contact_id")
            .orderBy("event_id")
        )
        assert connection.execute(travel.rewrite(past)).fetchall() == [tuple(row) for row in as_spark_has_it.collect()]


@pytest.mark.integration
def test_without_deletion_vectors_files_are_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(deletion_vectors=True))
    stage.land(rows=[row("acme", f"e{number}", f"c{number}", 1) for number in range(20)])
    stage.land(requests=[request("acme", 5, "rename", "c0", "z")])
    run(spark, stage)
    marked = MutationHarness(tmp_path, declared(deletion_vectors=False), iter([10]))
    marked.land(requests=[request("acme", 6, "rename", "c1", "y")])

    (end,) = run(spark, marked).batches

    assert (end.rows, end.tables[0].files_removed) == (1, 1)
    opened = marked.lake.open(KEY)
    assert opened is not None
    assert has_deletion_vectors(opened)
    assert {event: state[0] for event, state in ended(marked).items() if event in ("e0", "e1", "e2")} == {
        "e0": "z",
        "e1": "y",
        "e2": "c2",
    }
