"""Quarantined rows expire after their days and nothing younger with them; the recomputed summary matches the table."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.objects import LocalObjects, open_objects
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.quarantine import QuarantineCounter, QuarantineSummary
from deltaworks.errors import ConcurrencyError
from deltaworks.events.archive import ARCHIVE_PARTITION, archive_rows
from deltaworks.events.chunks import BatchMetadata
from deltaworks.maintenance import deletion_limits
from deltaworks.maintenance.deletion_limits import DeletionLimit
from deltaworks.recovery.quarantine import open_rows as module
from deltaworks.recovery.quarantine.expire import ExpiryResult, expire_quarantine
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter, recount_quarantine
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.sources.objects.file_event_log import MESSAGE_QUARANTINE_SCHEMA, message_quarantine_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.tables.commit import Step
from deltaworks.tables.log import commit_history
from deltaworks.testing import append_rows, pipeline_spec, present
from tests.examples import examples
from tests.unit.recovery.replay_harness import ARRIVED_US, ReplayHarness, orders

ARRIVED = dt.datetime.fromtimestamp(ARRIVED_US / 1e6, tz=dt.UTC)
DAY = dt.timedelta(days=1)


def spec(level: str = "int", days: int | None = 30) -> PipelineSpec:
    return pipeline_spec(orders(level), quarantine={"retain_days": days})


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    stage = ReplayHarness(tmp_path)
    lines = [{"name": "order", "time": 1_700_000_000, "level": level} for level in ("one", "two", [3], 4)]
    stage.ingest(spec(), *(json.dumps(line).encode() for line in lines))
    return stage


def expire(stage: ReplayHarness, *, after: dt.timedelta, dry_run: bool = False, days: int | None = 30) -> ExpiryResult:
    (result,) = expire_quarantine(stage.catalog(spec(days=days)), "shop", dry_run=dry_run, now=ARRIVED + after)
    return result


def test_rows_go_after_their_days_and_a_dry_run_only_counts_them(stage: ReplayHarness) -> None:
    assert expire(stage, after=30 * DAY).rows == 0
    counted = expire(stage, after=31 * DAY, dry_run=True)
    assert (counted.rows, counted.open_rows) == (3, 3)
    assert len(stage.rows("quarantine")) == 3

    done = expire(stage, after=31 * DAY)

    assert (done.rows, done.open_rows) == (3, 3)
    assert stage.rows("quarantine") == []
    assert len(stage.rows("orders")) == 1, "no other table loses a row"
    assert expire(stage, after=31 * DAY).rows == 0


def test_a_row_goes_whether_a_replay_has_landed_it_or_not(stage: ReplayHarness) -> None:
    replay_quarantine(stage.catalog(spec("string")), "shop", QuarantineFilter(), dry_run=False)

    done = expire(stage, after=31 * DAY)

    assert (done.rows, done.open_rows) == (3, 1)
    assert len(stage.rows("orders")) == 3
    assert not +stage.open_places()


def test_what_is_kept_for_ever_stays(stage: ReplayHarness) -> None:
    kept = expire(stage, after=10_000 * DAY, days=None)

    assert (kept.rows, kept.reason) == (0, "its rows are kept without limit, as declared")
    assert len(stage.rows("quarantine")) == 3


def test_a_night_removes_the_oldest_days_within_its_bound_and_the_next_ones_continue(
    stage: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_limits, "UNLIMITED_ROWS", 0)
    table = present(stage.lake.open(paths.table("shop", "quarantine")))
    rows = stage.rows("quarantine")
    for day in range(1, 5):
        later = pa.Table.from_pylist(
            [{**row, "quarantine_date": row["quarantine_date"] + day * DAY} for row in rows],
            schema=pa.schema(table.schema().to_arrow()),
        )
        stage.lake.append(table, paths.table("shop", "quarantine"), later, step=Step("t", day), user_metadata="{}")

    def night(share: float) -> list[int]:
        done = expire_quarantine(
            stage.catalog(spec()), "shop", dry_run=False, now=ARRIVED + 60 * DAY, limit=DeletionLimit(share=share)
        )
        open_ones = [alert.cause for alert in alerts(open_objects(stage.environment.lake)) if alert.state.is_open]
        return [done[0].rows, len(stage.rows("quarantine")), len(open_ones)]

    assert night(0.5) == [6, 9, 1], "two of five days"
    assert night(0.1) == [3, 6, 1], "one day at least, or it would never end"
    assert night(1) == [6, 0, 0]


def test_the_commit_says_who_removed_the_rows_and_up_to_when(stage: ReplayHarness) -> None:
    expire(stage, after=31 * DAY)

    table = present(stage.lake.open(paths.table("shop", "quarantine")))
    (newest, *_) = commit_history(stage.lake, paths.table("shop", "quarantine"), newest=table.version(), limit=1)
    assert newest.metadata["operation"] == "expire_quarantine"
    assert newest.metadata["before"] == (ARRIVED + DAY).date().isoformat()
    stage.ingest(spec(), b"{bad")
    assert len(stage.rows("quarantine")) == 1, "the stream goes on appending"


def test_two_runs_of_maintenance_do_not_meet(stage: ReplayHarness) -> None:
    with (
        maintenance_lock(open_objects(stage.environment.lake), "shop", work="a test"),
        pytest.raises(ConcurrencyError, match="MAINTENANCE_RUNNING"),
    ):
        expire(stage, after=31 * DAY)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ages=st.lists(st.integers(0, 60), min_size=1, max_size=6), days=st.integers(1, 40))
def test_messages_of_no_use_go_after_their_days_and_no_younger_ones(
    tmp_path_factory: pytest.TempPathFactory, ages: list[int], days: int
) -> None:
    stage, key = ReplayHarness(tmp_path_factory.mktemp("lake")), message_quarantine_key("landing")
    rows = [
        {"message_id": str(at), "body": "b", "reason": "r", "received_at": ARRIVED - age * DAY, "batch": 1}
        for at, age in enumerate(ages)
    ]
    append_rows(stage.lake, key, rows, schema=MESSAGE_QUARANTINE_SCHEMA)
    relay = RelaySpec(relay="landing", queue_url="q", buckets=("landing",), message_retention_days=days)
    catalog = Catalog(stage.environment, {"landing": relay}, {"shop": spec()}, stage.landing)

    counted = expire_quarantine(catalog, "shop", now=ARRIVED)[1]
    done = expire_quarantine(catalog, "shop", dry_run=False, now=ARRIVED)[1]

    left = present(stage.lake.rows(key))
    assert sorted(left.column("message_id").to_pylist()) == [str(at) for at, age in enumerate(ages) if age <= days]
    assert counted.rows == done.rows == len(ages) - left.num_rows


KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]}


@given(ages=st.lists(st.integers(0, 6), min_size=1, max_size=5), days=st.integers(1, 5))
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_archived_payloads_go_by_whole_dates(
    tmp_path_factory: pytest.TempPathFactory, ages: list[int], days: int
) -> None:
    stage, key = ReplayHarness(tmp_path_factory.mktemp("lake")), paths.table("shop", "archive")
    for batch, age in enumerate(ages):
        columns = {"_seq": pa.array([batch], pa.int64()), "value": pa.array([b"raw"], pa.binary())}
        rows = archive_rows(columns, BatchMetadata(batch, ARRIVED_US - age * 86_400_000_000, "spec"))
        append_rows(stage.lake, key, rows, number=batch, partition_by=ARCHIVE_PARTITION)
    catalog = stage.catalog(pipeline_spec(orders("int"), source=KAFKA, archive={"retain_days": days}))

    counted = expire_quarantine(catalog, "shop", now=ARRIVED)[1]
    done = expire_quarantine(catalog, "shop", dry_run=False, now=ARRIVED)[1]

    left = present(stage.lake.rows(key))
    assert sorted(left.column("_seq").to_pylist()) == [batch for batch, age in enumerate(ages) if age <= days]
    assert (done.table, counted.rows, done.rows) == ("archive", len(ages) - left.num_rows, counted.rows)


def with_retention(days: int | None) -> PipelineSpec:
    return pipeline_spec(
        {**orders("int"), "retention_days": days, "partition_by": ["event_date"]}, quarantine={"retain_days": None}
    )


def test_rows_of_a_table_go_by_the_date_of_their_event_once_they_are_as_old_as_it_declares(tmp_path: Path) -> None:
    stage, first = ReplayHarness(tmp_path), dt.datetime(2023, 11, 14, tzinfo=dt.UTC)
    times = [int((first + number * DAY).timestamp()) for number in range(5)]
    stage.ingest(
        with_retention(30), *(json.dumps({"name": "order", "time": time, "level": time}).encode() for time in times)
    )

    def run(spec: PipelineSpec, *, dry_run: bool) -> list[ExpiryResult]:
        return expire_quarantine(stage.catalog(spec), "shop", dry_run=dry_run, now=first + 33 * DAY)

    counted = run(with_retention(30), dry_run=True)[1]
    assert (counted.table, counted.rows, counted.before) == ("orders", 3, "2023-11-17")
    assert len(stage.rows("orders")) == 5
    assert [result.table for result in run(with_retention(None), dry_run=False)] == ["quarantine"]
    assert len(stage.rows("orders")) == 5

    done = run(with_retention(30), dry_run=False)[1]

    assert (done.rows, done.open_rows) == (3, 0)
    assert sorted(row["level_int"] for row in stage.rows("orders")) == times[3:]
    assert run(with_retention(30), dry_run=False)[1].rows == 0


def counted_spec(level: str = "int") -> PipelineSpec:
    return pipeline_spec(orders(level))


@pytest.fixture
def counted_stage(tmp_path: Path) -> ReplayHarness:
    counted_stage = ReplayHarness(tmp_path)
    lines = [{"name": "order", "time": 1_700_000_000, "level": level} for level in ("one", "two", [3], 4)]
    lines.append({"name": "<b>shop</b>", "time": 1_700_000_000})
    counted_stage.ingest(counted_spec(), *(json.dumps(line).encode() for line in lines))
    return counted_stage


def recount(counted_stage: ReplayHarness) -> QuarantineSummary:
    recount_quarantine(counted_stage.environment.lake, "shop")
    summary, _ = read_summary(
        QuarantineSummary, LocalObjects(Path(counted_stage.environment.lake.prefix)), quarantine_summary("shop")
    )
    assert summary is not None
    return summary


def by_event(summary: QuarantineSummary) -> Counter[str]:
    counted = Counter[str]()
    for row in summary.open_rows:
        counted[f"{row.reason} {row.event}"] += row.rows
    return counted


def test_open_rows_are_counted_by_reason_and_event_and_a_replay_closes_them(counted_stage: ReplayHarness) -> None:
    assert by_event(recount(counted_stage)) == {"type_mismatch order": 3, "unknown_event <b>shop</b>": 1}

    replay_quarantine(counted_stage.catalog(counted_spec("string")), "shop", QuarantineFilter(), dry_run=False)

    assert sum(by_event(recount(counted_stage)).values()) < 4
    assert by_event(recount(counted_stage))["unknown_event <b>shop</b>"] == 1


def test_the_stream_adds_to_a_recount_what_it_has_not_counted(counted_stage: ReplayHarness) -> None:
    counted = recount(counted_stage)
    writer = QuarantineCounter(
        LocalObjects(Path(counted_stage.environment.lake.prefix)), "shop", generation=counted.generation, spec="s"
    )
    for batch in (counted.through_batch, counted.through_batch + 1):
        writer.add(batch, [("malformed", "", "", 10)], at=utc_now())

    writer.write(force=True)

    summary, _ = read_summary(
        QuarantineSummary, LocalObjects(Path(counted_stage.environment.lake.prefix)), quarantine_summary("shop")
    )
    assert summary is not None
    assert by_event(summary)["malformed "] == 10


def test_a_recount_without_any_row_does_not_forget_through_which_batch_it_was_counted(
    counted_stage: ReplayHarness,
) -> None:
    objects, key = LocalObjects(Path(counted_stage.environment.lake.prefix)), quarantine_summary("shop")
    objects.put(key, QuarantineSummary(pipeline="shop", at="", generation=1, through_batch=900).encode())

    assert recount(counted_stage).through_batch == 900


def test_a_recount_that_fails_fails_nobody(counted_stage: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("the disk is full")

    before = recount(counted_stage)
    monkeypatch.setattr(module, "Quarantine", refuse)

    assert recount(counted_stage) == before, "what was counted last stands"
