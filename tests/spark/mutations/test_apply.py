"""A mutation batch gives the same rows as a sequential replay of all requests, after a crash at any step."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.mutation import MutationCompletion
from deltaworks.engine.notifications import with_notifications
from deltaworks.errors import ConcurrencyError
from deltaworks.mutations import apply
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.batch_steps import BatchSteps
from deltaworks.mutations.forecast import forecast
from deltaworks.mutations.read_changes import read_changes
from deltaworks.tables.commit import Step
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.query import connect
from deltaworks.tables.time_travel import TimeTravel
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.spark.mutations.cases import generated
from tests.spark.mutations.interleaving import Interleaving, ended, request, row
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, START, TOLD, MutationHarness, declared


def run(spark: SparkSession, stage: MutationHarness, **options: Any) -> Any:
    return MutationRun(lambda: spark, stage.catalog, PIPELINE).run(**options)


@pytest.mark.integration
@pytest.mark.parametrize("small_merge_bytes", [0, 1 << 30], ids=["spark", "delta_rs"])
def test_any_interleaving_of_rows_and_requests_equals_a_replay_of_the_log(
    spark: SparkSession, tmp_path: Path, small_merge_bytes: int
) -> None:
    stage = MutationHarness(tmp_path, declared(partition_by=("event_date",), small_merge_bytes=small_merge_bytes))
    cases = Interleaving(generated(300, start=6), parts=3, seed=6)

    for rows, requests in zip(cases.rows, cases.requests, strict=True):
        stage.land(rows=rows, requests=requests)
        run(spark, stage)

    found, expected = ended(stage), cases.expected()
    different = [(event, found[event], expected[event]) for event in expected if found[event] != expected[event]]
    assert not different, (len(different), different[:3])
    assert len(expected) == 300 * 25
    assert sum(deleted for _, deleted, _ in expected.values()) > 500

    again = run(spark, stage, everything=True)
    assert [end.rows for end in again.batches] == [0]
    assert ended(stage) == expected


def test_a_batch_changes_only_the_requested_rows_and_notifies_them(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path)
    orgs = ("acme", "bolt", "core")
    stage.land(rows=[row(org, f"{org}-{number}", "a", number) for org in orgs for number in (1, 5)])
    # The files of organisations outside the batch are deleted, so that reading them fails.
    for file in (tmp_path / paths.table(PIPELINE, DATA) / "org_id=core").glob("*.parquet"):
        file.unlink()
    stage.land(
        requests=[
            request("acme", 3, "rename", "a", "b"),
            request("acme", 4, "rename_name", "b", name="Bee"),
            request("bolt", 9, "delete", "a"),
            request("bolt", 9, "paint", "a"),
        ]
    )

    (end,) = run(spark, stage).batches

    (done,) = end.tables
    assert (done.rows, done.files_removed, done.files_added) == (3, 2, 2)
    assert (end.requests, end.invalid_requests) == ({"rename": 1, "rename_name": 1, "delete": 1}, 1)
    told = {(each["org_id"], each["change"], tuple(each["keys"])) for each in stage.rows(TOLD)}
    assert told == {("acme", "rename", ("acme-1",)), ("bolt", "delete", ("bolt-1", "bolt-5"))}
    assert {(each["batch"], each["batch_kind"], each["data_version"]) for each in stage.rows(TOLD)} == {
        (1, "mutation", done.version)
    }
    assert [(each["id"], each["name"]) for each in stage.rows("names")] == [("b", "Bee")]
    assert run(spark, stage).batches == []


@pytest.mark.integration
def test_a_repeated_batch_changes_nothing_and_late_rows_get_the_same_outcome(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = MutationHarness(tmp_path, declared(optimize_every=3))
    stage.land(
        rows=[row(org, f"{org}-{number}", "a", number) for org in ("acme", "bolt") for number in (1, 5)],
        requests=[request("acme", 3, "rename", "a", "b"), request("bolt", 9, "delete", "a")],
    )
    run(spark, stage)
    versions = [stage.version(name) for name in (DATA, TOLD, "intervals", "names")]

    repeated = repeat(spark, stage)

    assert repeated.tables[0].rows == 3
    assert versions == [stage.version(name) for name in (DATA, TOLD, "intervals", "names")]

    # A row that lands after its rename was applied, a request about an earlier time, and an undelete.
    stage.land(
        rows=[row("acme", "acme-late", "a", 2)],
        requests=[request("acme", 2.5, "update", "a", fields=[("f", "late")]), request("bolt", 20, "undelete", "a")],
    )
    (second,) = run(spark, stage).batches
    contacts = {event: (contact, values["f"]) for event, (contact, gone, values) in ended(stage).items() if not gone}
    assert contacts == {
        "acme-1": ("b", "late"),
        "acme-late": ("b", "late"),
        "acme-5": ("a", "f0"),
        **{f"bolt-{number}": ("a", "f0") for number in (1, 5)},
    }
    kinds = {(each["change"], *each["keys"]) for each in stage.rows(TOLD) if each["batch"] == 2}
    # A late row is announced like the others of its interval, under their former id.
    assert kinds == {("update", "acme-1", "acme-late"), ("insert", "bolt-1", "bolt-5")}
    assert second.tables[0].optimized is False


def repeat(spark: SparkSession, stage: MutationHarness) -> MutationCompletion:
    """Runs the newest batch again, like a process that was wrongly declared dead."""
    batch = present(stage.batches.batch(stage.batches.numbers()[1]))
    steps = BatchSteps(
        lambda: spark,
        stage.lake,
        stage.spec,
        batch,
        acquire_turn=uncontested_turn,
        check=lambda: None,
        fault=lambda point: None,
    )
    return steps.apply()


def test_two_concurrent_runs_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path)
    lease = Lease(stage.objects, paths.mutations(PIPELINE, "lease.json"), ttl_seconds=30, name="another run")
    lease.acquire(wait_seconds=0)
    try:
        with pytest.raises(ConcurrencyError, match="LEASE_HELD"):
            MutationRun(lambda: spark, stage.catalog, PIPELINE, lease_wait_seconds=0).run()
    finally:
        lease.release()
    assert run(spark, stage).batches == []


@pytest.mark.integration
def test_a_dry_run_forecasts_a_batch_and_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path)
    stage.land(
        rows=[
            row(org, f"{org}-{number}", each, number) for org in ("acme", "bolt") for number, each in enumerate("abc")
        ],
        requests=[
            request("acme", 10, "rename", "a", "b"),
            request("acme", 11, "merge", "b", "c"),
            request("bolt", 10, "delete", "a"),
        ],
    )
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())

    found = forecast(lambda: spark, stage.catalog, PIPELINE)

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert found is not None
    assert found.requests == {"rename": 1, "merge": 1, "delete": 1}
    assert (found.organisations, found.chains, found.longest_chain) == (2, 1, 2)
    assert (found.components, found.largest_component) == (1, 3)
    (table,) = found.tables
    assert (table.rows, table.files, table.total_files, table.partitions) == (3, 2, 2, 2)
    (end,) = run(spark, stage).batches
    assert end.rows == table.rows
    assert forecast(lambda: spark, stage.catalog, PIPELINE) is None


@pytest.mark.integration
def test_only_rows_deleted_long_ago_are_purged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path)
    stage.land(rows=[row("acme", "old", "a", 1), row("acme", "new", "b", 1), row("acme", "kept", "c", 1)])
    stage.land(requests=[request("acme", 5, "delete", "a")])
    run(spark, stage)
    stage.land(requests=[request("acme", 5, "delete", "b"), request("acme", 5, "rename", "c", "d")])
    run(spark, stage)
    first = present(stage.batches.completion(1))
    ended_at = dt.datetime.fromisoformat(first.at)
    monkeypatch.setattr(apply, "utc_now", lambda: ended_at + dt.timedelta(days=30, milliseconds=1))

    (counted,) = apply.purge_deleted(spark, stage.catalog, PIPELINE)
    assert (counted.rows, counted.dry_run, len(stage.rows())) == (1, True, 3)
    (done,) = apply.purge_deleted(spark, stage.catalog, PIPELINE, dry_run=False)

    assert (done.rows, done.organisations) == (1, 1)
    assert {each["event_id"] for each in stage.rows()} == {"new", "kept"}
    assert [each.rows for each in apply.purge_deleted(spark, stage.catalog, PIPELINE, dry_run=False)] == [0]
    # Rows written by the purge are not new rows.
    assert run(spark, stage).batches == []


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
            MutationRun(lambda: spark, stage.catalog, PIPELINE, fault=crash_at(point)).run()

    result = MutationRun(lambda: spark, stage.catalog, PIPELINE).run()

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
    assert MutationRun(lambda: spark, stage.catalog, PIPELINE).run().batches == []


def tell(stage: MutationHarness, batch: int) -> None:
    """Returns the notifications that end a stream's batch, as the fan-out creates them."""
    rows = present(stage.lake.rows(paths.table(PIPELINE, DATA)))
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
    MutationRun(lambda: spark, stage.catalog, PIPELINE).run()
    # The mutation batch announced its changes first; its rows are read when the stream's batch announces them.
    assert read() == [("late", "b", False), ("one", "b", False), ("three", "a", True)]
    tell(stage, 2)
    assert read() == []

    stage.land(requests=[request("bolt", 20, "undelete", "a"), request("acme", 9, "merge", "c", "b")])
    MutationRun(lambda: spark, stage.catalog, PIPELINE).run()
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
    found = present(stage.lake.rows(KEY, columns=["event_id"], filters=ds.field("contact_id").isin(["z", "c7"])))
    assert sorted(found.column("event_id").to_pylist()) == ["e0", "e7", "late"]
    connection, _ = connect(stage.catalog)
    for _ in range(2):
        assert connection.execute(f"SELECT count(*), count(DISTINCT event_id) FROM {PIPELINE}.{DATA}").fetchall() == [
            (19, 19)
        ]
    assert spark.read.format("delta").load(stage.lake.storage.spark_uri(KEY)).count() == 21
    table = present(stage.lake.open(KEY))
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
    opened = present(marked.lake.open(KEY))
    assert has_deletion_vectors(opened)
    assert {event: state[0] for event, state in ended(marked).items() if event in ("e0", "e1", "e2")} == {
        "e0": "z",
        "e1": "y",
        "e2": "c2",
    }
