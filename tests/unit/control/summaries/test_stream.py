"""Summaries of streams, tables and nights: bounded, in order, and rebuilt if lost."""

from __future__ import annotations

import datetime as dt
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.jobs import MAX_NIGHTS, Night, NightsSummary, record_night
from deltaworks.control.summaries.stream import (
    MAX_BATCHES,
    MAX_HOURS,
    MAX_PROBLEMS,
    BatchSummary,
    RecentBatches,
    StreamSummaryWriter,
    age_quantiles,
    gold_waiting_since,
    read_hours,
    read_recent,
    recent_freshness,
    sample_by_rank,
)
from deltaworks.control.summaries.tables import MAX_NIGHTS as TABLE_NIGHTS
from deltaworks.control.summaries.tables import HealthPoint, TableSummary, add_night
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.testing import declare_table, pipeline_spec, present
from tests.failing_objects import RefusingObjects

NOW = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)


def batch(
    number: int, *, at: datetime = NOW, files: int = 2, rows: int = 100, arrived: tuple[float, ...] = ()
) -> BatchSummary:
    return BatchSummary(
        batch_id=number,
        at=at.isoformat(),
        rows=rows,
        quarantined=1,
        files=files,
        bytes=10,
        tables=2,
        prepare_seconds=1.0,
        commit_seconds=0.5,
        complete_seconds=0.25,
        oldest_pending_seconds=float(number),
        arrival_ages=arrived,
    )


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def test_the_last_batches_and_problems_survive_a_restart(objects: LocalObjects) -> None:
    for run in range(2):
        writer = StreamSummaryWriter(objects, "games")
        for number in range(200):
            writer.add(batch(200 * run + number))
            writer.add_problem(NOW, f"problem {number}")
        writer.write(NOW)
    stored = read_recent(objects, "games")

    assert stored is not None
    assert [item.batch_id for item in stored.batches] == list(range(400 - MAX_BATCHES, 400))
    assert len(stored.problems) == MAX_PROBLEMS


def test_hours_add_up_and_the_oldest_are_dropped(objects: LocalObjects) -> None:
    writer = StreamSummaryWriter(objects, "games")
    for back in (MAX_HOURS + 5, 1, 0, 0):
        writer.add(batch(back, at=NOW - timedelta(hours=back)))
    writer.write(NOW)
    stored = read_hours(objects, "games")

    assert stored is not None
    assert [(hour.at[11:13], hour.batches, hour.rows) for hour in stored.hours] == [("11", 1, 100), ("12", 2, 200)]
    assert stored.hours[-1].busy_seconds == 3.5


def test_hours_are_written_once_a_minute_and_at_the_end(objects: LocalObjects) -> None:
    writer = StreamSummaryWriter(objects, "games")
    totals = []
    for seconds, last in ((0, False), (10, False), (70, False), (80, True)):
        writer.add(batch(seconds))
        writer.write(NOW + timedelta(seconds=seconds), last=last)
        stored = read_hours(objects, "games")
        totals.append(stored.hours[-1].batches if stored else 0)

    assert totals == [1, 1, 3, 4]


def test_a_failed_write_is_repeated_by_the_next(tmp_path: Path) -> None:
    objects = RefusingObjects(tmp_path)
    writer = StreamSummaryWriter(objects, "games")
    writer.add(batch(1))
    with pytest.raises(OSError, match="full"):
        writer.write(NOW)
    objects.refuses = False
    writer.add(batch(2))
    writer.write(NOW)
    recent, hours = read_recent(objects, "games"), read_hours(objects, "games")

    assert recent is not None
    assert hours is not None
    assert [item.batch_id for item in recent.batches] == [1, 2]
    assert hours.hours[0].batches == 2


@pytest.mark.parametrize("torn", [b"", b"{", b'{"format": 2}', b"[]"])
def test_a_damaged_summary_is_restarted(objects: LocalObjects, torn: bytes) -> None:
    objects.put(paths.recent_batches("games"), torn)
    objects.put(paths.stream_hours("games"), torn)
    assert read_recent(objects, "games") is None
    writer = StreamSummaryWriter(objects, "games")
    writer.add(batch(1))
    writer.write(NOW)

    assert read_recent(objects, "games") is not None


@given(st.lists(st.tuples(st.integers(1, 15), st.floats(0, 1e6)), min_size=1, max_size=8))
def test_quantiles_weigh_each_batch_by_its_files(batches: list[tuple[int, float]]) -> None:
    """Compared with a slow computation over single files."""
    items = [
        batch(index, files=files, arrived=sample_by_rank([age] * files)) for index, (files, age) in enumerate(batches)
    ]
    ages = sorted(round(age, 1) for files, age in batches for _ in range(files))
    got = age_quantiles(items)

    assert got is not None
    for value, share in zip(got, (0.5, 0.95), strict=True):
        assert value == ages[min(-int(-len(ages) * share // 1) - 1, len(ages) - 1)]


def test_a_sample_has_the_youngest_and_the_oldest() -> None:
    sample = sample_by_rank([float(age) for age in range(1_000)])

    assert (len(sample), sample[0], sample[-1]) == (20, 0.0, 999.0)
    assert sample_by_rank([]) == ()


def test_freshness_covers_only_recent_input() -> None:
    old, new = batch(1, at=NOW - timedelta(hours=2), arrived=(900.0,)), batch(2, arrived=(9.0, 40.0))
    record = RecentBatches(pipeline="games", written_at=NOW.isoformat(), batches=(old, new))

    assert record.freshness(NOW) == (9.0, 40.0)
    assert record.freshness(NOW + timedelta(hours=3)) is None


def test_cached_freshness_follows_the_record_and_the_minute(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    arrived = (9.0, 40.0)
    older = batch(1, at=NOW, files=2).replace(arrival_ages=arrived)
    record = RecentBatches(pipeline="games", written_at=NOW.isoformat(), batches=(older,))
    objects.put(paths.recent_batches("games"), record.encode())

    assert recent_freshness(objects, "games", NOW + timedelta(seconds=59)) == record.freshness(NOW)
    assert recent_freshness(objects, "games", NOW + timedelta(hours=3)) is None
    newer = record.replace(batches=(older.replace(arrival_ages=(1.0, 2.0)),))
    objects.put(paths.recent_batches("games"), newer.encode())
    assert recent_freshness(objects, "games", NOW + timedelta(seconds=59)) == newer.freshness(NOW)
    objects.put(paths.recent_batches("games"), b"{")
    assert recent_freshness(objects, "games", NOW) is None


STARTED_AT = dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC)


def night(number: int, *, run: str = "") -> Night:
    at = STARTED_AT + dt.timedelta(days=number)
    return Night(
        run=run or f"run {number}", date=at.date().isoformat(), started_at=at.isoformat(), ended_at=at.isoformat()
    )


def stored_nights(objects: LocalObjects) -> tuple[Night, ...]:
    item = present(objects.get(nights_summary("games")))
    return NightsSummary.decode(item.data, key="k").nights


def test_the_newest_nights_are_kept_newest_first(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    for number in range(MAX_NIGHTS + 5):
        assert record_night(objects, "games", night(number))

    assert [one.run for one in stored_nights(objects)] == [f"run {number}" for number in range(MAX_NIGHTS + 4, 4, -1)]


def test_a_repeated_run_replaces_itself(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    record_night(objects, "games", night(1))
    record_night(objects, "games", night(2))
    record_night(objects, "games", night(1).replace(is_manual=True))

    assert [(one.run, one.is_manual) for one in stored_nights(objects)] == [("run 2", False), ("run 1", True)]


@pytest.mark.parametrize("torn", [b"", b"{", b"null", b'{"format": 2, "pipeline": "games"}'])
def test_a_damaged_summary_of_nights_is_restarted(tmp_path: Path, torn: bytes) -> None:
    objects = LocalObjects(tmp_path)
    objects.put(nights_summary("games"), torn)

    assert record_night(objects, "games", night(1))

    assert [one.run for one in stored_nights(objects)] == ["run 1"]


def test_concurrent_records_do_not_lose_a_night(tmp_path: Path) -> None:
    class Raced(LocalObjects):
        raced = False

        def put_if_absent(self, key: str, data: bytes) -> bool:
            if not self.raced:
                self.raced = True
                assert record_night(self, "games", night(1))
            return super().put_if_absent(key, data)

    objects = Raced(tmp_path)
    assert record_night(objects, "games", night(2))

    assert [one.run for one in stored_nights(objects)] == ["run 2", "run 1"]


def test_a_table_keeps_one_point_per_date() -> None:
    earlier = [
        HealthPoint(date=(STARTED_AT + dt.timedelta(days=n)).date().isoformat(), score=n, bytes=n) for n in range(40)
    ]
    table = TableSummary(name="events", kind="bronze", score=99, bytes=7)

    (once,) = add_night([table], {"events": earlier}, date="2026-02-10")
    (twice,) = add_night([table.replace(score=50)], {"events": once.nights}, date="2026-02-10")

    assert len(twice.nights) == TABLE_NIGHTS
    assert twice.nights[-2:] == (earlier[-1], HealthPoint(date="2026-02-10", score=50, bytes=7))


def test_an_unreadable_table_gets_no_point() -> None:
    (table,) = add_night([TableSummary(name="events", kind="bronze", error="torn")], {}, date="2026-02-10")

    assert table.nights == ()


SHOP = pipeline_spec(declare_table("orders"))


def gold_table(*reads: str) -> GoldTableSpec:
    return GoldTableSpec(name="daily", sql="daily.sql", reads=reads or ("orders",), partition_by="event_date")


def waits(objects: LocalObjects, record: dict[str, str], *reads: str) -> datetime | None:
    return gold_waiting_since(
        objects, SHOP, gold_table(*reads), record, recent=lambda pipeline: read_recent(objects, pipeline)
    )


def land(objects: LocalObjects, *landed: tuple[datetime, int], pipeline: str = "shop") -> None:
    writer = StreamSummaryWriter(objects, pipeline)
    for number, (at, rows) in enumerate(landed):
        writer.add(batch(number, at=at, rows=rows))
    writer.write(NOW, last=True)


MINUTES = st.integers(0, 600)


@given(landed=st.lists(st.tuples(MINUTES, st.sampled_from([0, 5])), max_size=40), built=MINUTES)
def test_rows_wait_for_gold_from_the_first_batch_after_the_build(
    tmp_path_factory: pytest.TempPathFactory, landed: list[tuple[int, int]], built: int
) -> None:
    objects = LocalObjects(tmp_path_factory.mktemp("objects"))
    at = {minute: NOW + timedelta(minutes=minute) for minute in range(601)}
    land(objects, *((at[minute], rows) for minute, rows in sorted(landed)))

    expected = min((minute for minute, rows in landed if rows and minute > built), default=None)

    assert waits(objects, {"at": at[built].isoformat()}) == (None if expected is None else at[expected])


def test_beyond_the_last_batches_rows_wait_since_the_hour_in_which_they_landed(objects: LocalObjects) -> None:
    first = NOW + timedelta(hours=3)
    land(objects, (NOW, 5), *((first + timedelta(minutes=minute), 5) for minute in range(2 * MAX_BATCHES)))

    assert waits(objects, {"at": (NOW + timedelta(minutes=1)).isoformat()}) == first.replace(minute=0)


def test_rows_wait_for_a_table_that_was_never_built_since_it_was_first_seen(objects: LocalObjects) -> None:
    land(objects, (NOW - timedelta(days=1), 5))

    assert waits(objects, {}) is None
    assert waits(objects, {"seen_at": NOW.isoformat()}) == NOW


def test_rows_of_another_pipeline_wait_for_gold_that_reads_its_tables_only(objects: LocalObjects) -> None:
    later = NOW + timedelta(minutes=5)
    land(objects, (NOW, 5), (later, 5), pipeline="games")
    built = {"at": NOW.isoformat()}

    assert waits(objects, built) is None
    assert waits(objects, built, "games.daily_active_users") == later
