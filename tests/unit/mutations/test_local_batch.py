"""Batches of few requests are applied without Spark: as a replay, once each, after a crash at any step, or left to
Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.records.mutation import MutationCompletion
from deltaworks.mutations import local_batch
from deltaworks.mutations.apply import MutationResult, MutationRun
from deltaworks.mutations.entity_sizes import ENTITY_TOO_LARGE, LargestEntity, large_entities_locally
from deltaworks.mutations.forecast import forecast
from deltaworks.mutations.local_periods import Period
from deltaworks.mutations.local_resolve import Interval
from deltaworks.mutations.local_rows import merge_source
from deltaworks.specs.table import TableSpec
from deltaworks.tables.rewrite import SparkRequiredError
from deltaworks.testing import declare_table, present
from tests.crashes import Crash, crash_at
from tests.spark.mutations.cases import generated
from tests.spark.mutations.interleaving import Interleaving, ended, request, row
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, START, TOLD, MutationHarness, declared

SMALL = {"small_batch_requests": 20_000}
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


def no_session() -> Any:
    raise AssertionError("a small batch opened a Spark session")


def run(stage: MutationHarness, **options: Any) -> MutationResult:
    return MutationRun(no_session, stage.catalog, PIPELINE).run(**options)


def applied(stage: MutationHarness) -> MutationCompletion:
    (end,) = run(stage).batches
    return end


@pytest.mark.parametrize(("partition_by", "count"), [("org_id", 8), ("event_date", 60)])
def test_any_interleaving_of_rows_and_requests_equals_a_replay_of_the_log(
    tmp_path: Path, partition_by: str, count: int
) -> None:
    stage = MutationHarness(tmp_path, declared(partition_by=(partition_by,), **SMALL))
    cases = Interleaving(generated(count, start=6), parts=3, seed=6)

    for rows, requests in zip(cases.rows, cases.requests, strict=True):
        stage.land(rows=rows, requests=requests)
        run(stage)

    found, expected = ended(stage), cases.expected()
    different = [(event, found[event], expected[event]) for event in expected if found[event] != expected[event]]
    assert not different, (len(different), different[:3])
    assert len(expected) == count * 25
    assert sum(deleted for _, deleted, _ in expected.values()) >= count
    assert run(stage).batches == []


def test_a_batch_changes_only_the_requested_rows_and_notifies_them(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL))
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

    end = applied(stage)

    (done,) = end.tables
    assert (end.engine, done.engine) == ("process", "delta_rs")
    assert (done.rows, done.files_removed, done.files_added) == (3, 2, 2)
    assert (end.requests, end.invalid_requests) == ({"rename": 1, "rename_name": 1, "delete": 1}, 1)
    told = {(each["org_id"], each["change"], tuple(each["keys"])) for each in stage.rows(TOLD)}
    assert told == {("acme", "rename", ("acme-1",)), ("bolt", "delete", ("bolt-1", "bolt-5"))}
    assert {(each["batch"], each["batch_kind"], each["data_version"]) for each in stage.rows(TOLD)} == {
        (1, "mutation", done.version)
    }
    assert [(each["id"], each["name"]) for each in stage.rows("names")] == [("b", "Bee")]
    assert run(stage).batches == []


def test_late_rows_and_late_requests_get_the_same_outcome(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL))
    stage.land(
        rows=[row(org, f"{org}-{number}", "a", number) for org in ("acme", "bolt") for number in (1, 5)],
        requests=[request("acme", 3, "rename", "a", "b"), request("bolt", 9, "delete", "a")],
    )
    run(stage)
    stage.land(
        rows=[row("acme", "acme-late", "a", 2)],
        requests=[request("acme", 2.5, "update", "a", fields=[("f", "late")]), request("bolt", 20, "undelete", "a")],
    )

    applied(stage)

    contacts = {event: (contact, values["f"]) for event, (contact, gone, values) in ended(stage).items() if not gone}
    assert contacts == {
        "acme-1": ("b", "late"),
        "acme-late": ("b", "late"),
        "acme-5": ("a", "f0"),
        **{f"bolt-{number}": ("a", "f0") for number in (1, 5)},
    }
    kinds = {(each["change"], *each["keys"]) for each in stage.rows(TOLD) if each["batch"] == 2}
    assert kinds == {("update", "acme-1", "acme-late"), ("insert", "bolt-1", "bolt-5")}


def test_rows_that_arrive_alone_are_changed_by_earlier_requests(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL))
    stage.land(rows=[row("acme", "first", "a", 1)], requests=[request("acme", 3, "rename", "a", "b")])
    run(stage)
    versions = {name: stage.version(name) for name in ("intervals", "names")}
    stage.land(rows=[row("acme", "late", "a", 2), row("bolt", "other", "a", 2)])

    end = applied(stage)

    assert (end.requests, end.rows) == ({}, 1)
    assert {event: state[0] for event, state in ended(stage).items()} == {"first": "b", "late": "b", "other": "a"}
    assert {name: stage.version(name) for name in versions} == versions


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


def test_a_crash_after_any_step_is_recovered(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL, optimize_every=1))
    for part, point in enumerate(POINTS):
        land(stage, part)
        with pytest.raises(Crash):
            MutationRun(no_session, stage.catalog, PIPELINE, fault=crash_at(point)).run()

    result = run(stage)

    rows, last = stage.rows(), len(POINTS) - 1
    assert len(rows) == 2 * len(POINTS)
    assert {each["contact_id"] for each in rows} == {f"n{last}"}
    (name,) = [each for each in stage.rows("names") if not each["_deleted"]]
    assert (name["id"], name["name"]) == (f"n{last}", f"name {last}")
    told = [(each["batch"], key) for each in stage.rows(TOLD) for key in each["keys"]]
    assert len(set(told)) == len(told)
    assert {key for _, key in told} == {each["event_id"] for each in rows}
    assert len(result.completed) == 0
    ends = [present(stage.batches.completion(number)) for number in range(1, stage.batches.numbers()[1] + 1)]
    assert {(end.outcome, end.engine) for end in ends} == {("applied", "process")}
    assert run(stage).batches == []


def test_each_commit_of_a_batch_has_its_step_and_names_its_engine(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL))
    land(stage, 0)
    run(stage)

    for table in (DATA, TOLD, "names", "intervals"):
        opened: DeltaTable = present(stage.lake.open(paths.table(PIPELINE, table)))
        assert opened.transaction_version(f"{PIPELINE}/mutation/{table}") == 1
        assert not str(opened.history(1)[0]["engineInfo"]).startswith("Apache-Spark")


@pytest.mark.parametrize(
    ("settings", "constants", "reason"),
    [
        ({"small_batch_requests": 0}, {}, "`small_batch_requests` is 0"),
        ({"small_batch_requests": 1}, {}, "2 requests of the affected organisations are more than 1"),
        ({"small_merge_bytes": 0}, {}, "more than `small_merge_bytes`"),
        ({}, {"MAX_STATE_BYTES": 10}, "table requests has"),
        ({}, {"MAX_LISTED_ORGANISATIONS": 0}, "requests of 1 organisations are more than 0"),
    ],
)
def test_a_batch_that_is_too_large_is_left_to_spark_within_its_bounds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    constants: dict[str, int],
    reason: str,
) -> None:
    stage = MutationHarness(tmp_path, declared(**{**SMALL, **settings}))
    land(stage, 0)
    for name, value in constants.items():
        monkeypatch.setattr(local_batch, name, value)

    result = MutationRun(None, stage.catalog, PIPELINE).run()

    assert (result.completed, result.batches) == ([], [])
    assert reason in result.spark_reason
    # The batch is begun and recorded, and no row has changed.
    assert stage.batches.numbers() == (1, 0)
    assert all(each["_mutation"] is None for each in stage.rows())


def test_a_dry_run_forecasts_a_batch_and_writes_nothing(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL))
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

    found = present(forecast(no_session, stage.catalog, PIPELINE))

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert found.requests == {"rename": 1, "merge": 1, "delete": 1}
    assert (found.organisations, found.chains, found.longest_chain) == (2, 1, 2)
    assert (found.components, found.largest_component) == (1, 3)
    (table,) = found.tables
    assert (table.rows, table.files, table.total_files, table.partitions) == (3, 2, 2, 2)
    assert applied(stage).rows == table.rows
    assert forecast(no_session, stage.catalog, PIPELINE) is None


def test_a_large_entity_raises_an_alert(tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(**SMALL, alert_above_ids=3))
    stage.land(
        rows=[row("acme", "e", "c0", 1)],
        requests=[request("acme", 2 + number, "merge", f"c{number}", "default") for number in range(4)],
    )
    run(stage)

    assert open_subjects(stage.objects, ENTITY_TOO_LARGE) == {f"{PIPELINE}.requests/acme"}


def test_the_largest_entity_of_an_organisation_counts_ids_that_end_at_one() -> None:
    def interval(name: str, final_id: str, *, deleted_at: int | None = None, org: str = "o") -> Interval:
        return Interval(
            org_id=org,
            id=name,
            valid_from=None,
            valid_to=9,
            final_id=final_id,
            deleted=deleted_at is not None,
            hops=1,
            last_time=deleted_at or 7,
            last_seq=None,
        )

    intervals = [interval(name, "z") for name in "abcab"] + [interval("d", "y"), interval("e", "y")]
    # Two deletes of one id are two entities.
    intervals += [interval(name, "x", deleted_at=at) for name, at in (("f", 1), ("g", 1), ("h", 2), ("i", 2))]

    assert large_entities_locally(intervals, limit=1) == [LargestEntity("o", "z", 3, "a")]
    assert large_entities_locally(intervals, limit=3) == []


VALUES: list[tuple[str, str, Any]] = [
    ("long", "-17", -17),
    ("int", "2147483647", 2_147_483_647),
    ("double", "1.25", 1.25),
    ("boolean", "true", True),
    ("date", "2026-02-03", dt.date(2026, 2, 3)),
    ("timestamp", "2026-05-04 03:02:01.123456", dt.datetime(2026, 5, 4, 3, 2, 1, 123_456, tzinfo=dt.UTC)),
    ("decimal(10,2)", "12.30", Decimal("12.30")),
    ("string", " any text ", " any text "),
]


def table_with(kind: str) -> TableSpec:
    columns = {"org_id": "string", "contact": "string", "origin_contact": "string", "v": kind, "origin_v": kind}
    mutable = {"id": "contact", "origin": "origin_contact", "fields": {"v": "origin_v"}}
    declarations = (f"{name} {one} from {name.removeprefix('origin_')}" for name, one in columns.items())
    return TableSpec.model_validate(declare_table(DATA, *declarations, mutable=mutable))


def period(value: str) -> Period:
    return Period(org_id="o", id="a", valid_from=None, valid_to=1, final_id="b", deleted=False, fields={"v": value})


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_plain_values_are_parsed_to_the_type_of_their_column(kind: str, text: str, value: Any) -> None:
    assert merge_source(table_with(kind), [period(text)]).column("set_v").to_pylist() == [value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", " 5 "),
        ("long", "9223372036854775808"),
        ("int", "2147483648"),
        ("double", "1e3"),
        ("float", "1.5"),
        ("boolean", "yes"),
        ("date", "2026-02-30"),
        ("timestamp", "2026-05-04"),
        ("decimal(10,2)", "12.345"),
    ],
)
def test_values_that_only_spark_can_judge_are_left_to_spark(kind: str, text: str) -> None:
    with pytest.raises(SparkRequiredError, match="Spark decides whether"):
        merge_source(table_with(kind), [period(text)])
