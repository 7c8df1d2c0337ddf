"""A mutation batch gives the same rows as a sequential replay of all requests."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.control.records.mutation import MutationCompletion
from deltaworks.errors import ConcurrencyError
from deltaworks.mutations import apply
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.batch_steps import BatchSteps
from deltaworks.mutations.forecast import forecast
from tests.spark.mutations.cases import Log, generated
from tests.spark.mutations.mutation_harness import DATA, FIELDS, PIPELINE, START, TOLD, MutationHarness, declared
from tests.unit.mutations.replay_oracle import Row, replay


def moment(time: float) -> dt.datetime:
    return START + dt.timedelta(seconds=time)


class Interleaving:
    """Organisations with one log each, whose rows and requests land in random order in several parts."""

    def __init__(self, logs: Sequence[Log], *, parts: int, seed: int) -> None:
        self._logs = logs
        chance = random.Random(seed)
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(parts)]
        self.requests: list[list[dict[str, Any]]] = [[] for _ in range(parts)]
        for org, log in enumerate(logs):
            for number, (name, half) in enumerate(_probes(chance)):
                row = {"org_id": f"o{org}", "event_id": f"o{org}-{number}", "id": name, "time": moment(half / 2)}
                chance.choice(self.rows).append(row)
            for each in log:
                request = {"org_id": f"o{org}", "op": each.op, "id": each.id, "new_id": each.new_id, "seq": each.seq}
                given = list(each.fields.items()) or None
                chance.choice(self.requests).append({**request, "time": moment(each.time), "fields": given})

    def expected(self) -> dict[str, tuple[str, bool, dict[str, str]]]:
        """Returns the oracle's rows after all requests."""
        found = {}
        for org, log in enumerate(self._logs):
            landed = [row for part in self.rows for row in part if row["org_id"] == f"o{org}"]
            by_event = {row["event_id"]: Row(origin=row["id"], time=_seconds(row["time"])) for row in landed}
            replay(list(by_event.values()), log)
            for event, row in by_event.items():
                values = {name: row.fields.get(name) or f"{name}0" for name in FIELDS}
                found[event] = (row.id, row.deleted, values)
        return found


def _probes(chance: random.Random) -> Iterator[tuple[str, int]]:
    for name in "abcde":
        for half in chance.sample(range(19), 5):
            yield name, half


def _seconds(time: dt.datetime) -> float:
    return (time - START).total_seconds()


def ended(stage: MutationHarness) -> dict[str, tuple[str, bool, dict[str, str]]]:
    rows = stage.rows()
    assert len({row["event_id"] for row in rows}) == len(rows)
    return {
        row["event_id"]: (row["contact_id"], bool(row["_deleted"]), {name: row[name] for name in FIELDS})
        for row in rows
    }


def run(spark: SparkSession, stage: MutationHarness, **options: Any) -> Any:
    return MutationRun(spark, stage.catalog, PIPELINE).run(**options)


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


def request(org: str, time: float, op: str, each_id: str, to: str | None = None, **values: Any) -> dict[str, Any]:
    base = {"org_id": org, "op": op, "id": each_id, "new_id": to, "seq": 1, "time": moment(time), "fields": None}
    return base | values


def row(org: str, event: str, each_id: str, time: float) -> dict[str, Any]:
    return {"org_id": org, "event_id": event, "id": each_id, "time": moment(time)}


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
    batch = stage.batches.batch(stage.batches.numbers()[1])
    assert batch is not None
    steps = BatchSteps(
        spark,
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
            MutationRun(spark, stage.catalog, PIPELINE, lease_wait_seconds=0).run()
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

    found = forecast(spark, stage.catalog, PIPELINE)

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert found is not None
    assert found.requests == {"rename": 1, "merge": 1, "delete": 1}
    assert (found.organisations, found.chains, found.longest_chain) == (2, 1, 2)
    assert (found.components, found.largest_component) == (1, 3)
    (table,) = found.tables
    assert (table.rows, table.files, table.total_files, table.partitions) == (3, 2, 2, 2)
    (end,) = run(spark, stage).batches
    assert end.rows == table.rows
    assert forecast(spark, stage.catalog, PIPELINE) is None


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
    first = stage.batches.completion(1)
    assert first is not None
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
