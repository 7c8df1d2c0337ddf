"""A table with deletion vectors returns the same rows as one with rewritten files, for every reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.query import connect
from deltaworks.tables.time_travel import TimeTravel
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, MutationHarness, declared
from tests.spark.mutations.test_apply import ended, request, row, run

pytestmark = pytest.mark.integration
KEY = paths.table(PIPELINE, DATA)


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
