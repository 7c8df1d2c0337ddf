"""Summaries of a stream: bounded, continued across restarts, and rebuilt if lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.summaries.stream import (
    MAX_BATCHES,
    MAX_HOURS,
    MAX_PROBLEMS,
    BatchSummary,
    RecentBatches,
    StreamSummaryWriter,
    age_quantiles,
    read_hours,
    read_recent,
    recent_freshness,
    sample_by_rank,
)
from tests.failing_objects import RefusingObjects

NOW = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)


def batch(number: int, *, at: datetime = NOW, files: int = 2, arrived: tuple[float, ...] = ()) -> BatchSummary:
    return BatchSummary(
        batch_id=number,
        at=at.isoformat(),
        rows=100,
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
