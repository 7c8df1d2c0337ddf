"""A live table: windowed counts, sums and distinct values, exact within the watermark and idempotent.

The merge by Spark of a repeated batch is marked `integration`; tests/unit/engine/test_live_merge.py is its twin.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine import live as live_module
from deltaworks.engine.live import start_live_query
from deltaworks.errors import FencedError, TransientError
from deltaworks.tables.log import CommitInfo, commit_history
from tests.spark.live_progress import LiveProgress
from tests.spark.made_pulse import HEAD

PULSE = (
    HEAD
    + """\
tables: [{name: events, catch_all: true}]
live: [{name: hourly, reads: events, window_minutes: 60, watermark_minutes: 180, group_by: [event_name]}]
"""
)
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (PULSE, {})})


def append(pulse: Any, *events: tuple[float, str | None]) -> None:
    rows = [{"event_time": START + dt.timedelta(hours=hours), "event_name": name} for hours, name in events]
    pulse.append("pulse", "events", rows)


def process_available(spark: SparkSession, pulse: Any, **options: Any) -> list[LiveProgress]:
    live = pulse.spec("pulse").live[0]
    query = start_live_query(spark, pulse.catalog, "pulse", live, available_now=True, **options)
    query.awaitTermination(120)
    return [LiveProgress.from_spark(progress) for progress in query.recentProgress]


def counts(pulse: Any) -> dict[tuple[float, str | None], int]:
    rows = pulse.rows("pulse", "hourly")
    found = {((row["window_start"] - START) / dt.timedelta(hours=1), row["event_name"]): row["events"] for row in rows}
    assert len(found) == len(rows), "one row per window and group"
    return found


def commits(pulse: Any) -> list[CommitInfo]:
    key = paths.table("pulse", "hourly")
    return list(commit_history(pulse.lake, key, newest=pulse.lake.open(key).version()))


def checkpoint(pulse: Any) -> Path:
    return Path(pulse.lake.storage.prefix) / paths.live_checkpoint("pulse", 1, "hourly")


def test_counts_grow_with_each_batch_and_every_commit_names_its_batch(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (0.5, "a"), (0.5, None), (1, "a"))
    process_available(spark, pulse)
    assert counts(pulse) == {(0, "a"): 2, (0, None): 1, (1, "a"): 1}
    append(pulse, (0.9, "a"), (0.9, None), (2, "b"))

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 3, (0, None): 2, (1, "a"): 1, (2, "b"): 1}
    made = [(commit.operation, commit.metadata["operation"], commit.metadata["batch"]) for commit in commits(pulse)]
    assert made[-1] == ("CREATE TABLE", "create_table", "create")
    assert [(operation, ours) for operation, ours, _ in made[:-1]] == [("WRITE", "live")] * (len(made) - 1)
    assert all(commit.metadata["pipeline"] == "pulse" and commit.metadata["run"] for commit in commits(pulse))
    row = next(row for row in pulse.rows("pulse", "hourly") if row["event_name"] == "b")
    assert row["window_date"] == START.date()
    assert row["window_end"] - row["window_start"] == dt.timedelta(hours=1)


def test_large_batches_are_merged_by_spark(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append(pulse, (0, "a"), (0.5, None))
    process_available(spark, pulse)
    append(pulse, (0.9, "a"), (0.9, None), (2, "b"))
    monkeypatch.setattr(live_module, "MAX_COLLECTED_ROWS", 1)

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 2, (0, None): 2, (2, "b"): 1}
    assert [commit.operation for commit in commits(pulse)] == ["MERGE", "WRITE", "CREATE TABLE"]


@pytest.mark.parametrize(
    "most_rows", [live_module.MAX_COLLECTED_ROWS, pytest.param(1, marks=pytest.mark.integration)], ids=["here", "spark"]
)
def test_repeated_batches_change_nothing(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    monkeypatch.setattr(live_module, "MAX_COLLECTED_ROWS", most_rows)
    append(pulse, (0, "a"), (1, "a"))
    process_available(spark, pulse)
    append(pulse, (0, "a"))
    process_available(spark, pulse)
    before, versions = counts(pulse), [commit.version for commit in commits(pulse)]
    done = sorted((checkpoint(pulse) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in done[-2:]:
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    replayed = process_available(spark, pulse)

    assert replayed, "the last batch did run again"
    assert counts(pulse) == before == {(0, "a"): 2, (1, "a"): 1}
    assert [commit.version for commit in commits(pulse)] == versions, "the transaction id kept old counts out"


@pytest.mark.integration
def test_a_lost_checkpoint_counts_again_and_ends_with_the_same_counts(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (1, "a"))
    append(pulse, (0, "a"))
    process_available(spark, pulse)
    checkpoint(pulse).rename(checkpoint(pulse).with_name("lost"))
    append(pulse, (1, "a"))

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 2, (1, "a"): 2}


def test_events_behind_the_watermark_are_dropped_and_counted(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (10, "a"))
    process_available(spark, pulse)
    append(pulse, (0, "a"), (9, "a"))

    progress = process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 1, (9, "a"): 1, (10, "a"): 1}
    assert sum(batch.late_rows for batch in progress) == 1
    assert progress[-1].watermark == "2025-03-01T19:00:00.000Z"


def test_nothing_is_merged_once_the_lease_is_lost(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"))

    def lost() -> None:
        raise FencedError("LEASE_LOST", "another driver has taken over")

    with pytest.raises(StreamingQueryException, match="LEASE_LOST"):
        process_available(spark, pulse, before_merge=lost)

    assert counts(pulse) == {}


def test_waiting_for_a_missing_table_ends_with_an_error(spark: SparkSession, pulse: Any) -> None:
    with pytest.raises(TransientError, match="LIVE_INPUT_MISSING"):
        process_available(spark, pulse, wait_seconds=0.1)


SUMS = (
    HEAD
    + """\
tables:
  - name: purchase
    catch_all: true
    columns:
      - {name: device_id, path: device, type: string}
      - {name: amount, path: amount, type: "decimal(12,2)"}
      - {name: items, path: items, type: int}
      - {name: weight, path: weight, type: double}
live:
  - {name: bookings, reads: purchase, sum: [amount, items, weight], distinct: [device_id, amount]}
  - {name: estimated, reads: purchase, distinct: [device_id], distinct_error_percent: 2}
"""
)


@pytest.fixture
def purchases(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (SUMS, {})})


def bought(hours: float, device: str | None, amount: str | None, items: int | None = 1) -> dict[str, Any]:
    price = None if amount is None else Decimal(amount)
    time = START + dt.timedelta(hours=hours)
    return {"event_time": time, "device_id": device, "amount": price, "items": items, "weight": 0.5}


def process_sum(spark: SparkSession, purchases: Any, number: int) -> None:
    query = start_live_query(
        spark, purchases.catalog, "pulse", purchases.spec("pulse").live[number], available_now=True
    )
    query.awaitTermination(120)
    assert query.exception() is None


def hours(purchases: Any) -> dict[float, tuple[Any, ...]]:
    names = ("events", "amount_sum", "items_sum", "weight_sum", "device_id_distinct", "amount_distinct")
    rows = purchases.rows("pulse", "bookings")
    return {(row["window_start"] - START) / dt.timedelta(hours=1): tuple(row[name] for name in names) for row in rows}


@pytest.mark.integration
def test_sums_grow_with_each_batch_and_duplicates_add_no_distinct_values(spark: SparkSession, purchases: Any) -> None:
    first = [bought(0, "a", "4.99"), bought(0.5, "b", "0.01"), bought(0.6, None, None, None), bought(1, "a", "1.00")]
    purchases.append("pulse", "purchase", first)
    process_sum(spark, purchases, 0)
    assert hours(purchases) == {
        0: (3, Decimal("5.00"), 2, 1.5, 2, 2),
        1: (1, Decimal("1.00"), 1, 0.5, 1, 1),
    }
    # One again, one late but within the watermark, one new.
    purchases.append("pulse", "purchase", [first[0], bought(0.9, "c", "4.99"), bought(2, "a", "9999999999.99")])
    process_sum(spark, purchases, 0)

    assert hours(purchases) == {
        0: (5, Decimal("14.98"), 4, 2.5, 3, 2),
        1: (1, Decimal("1.00"), 1, 0.5, 1, 1),
        2: (1, Decimal("9999999999.99"), 1, 0.5, 1, 1),
    }


def test_sums_equal_those_of_a_full_pass_for_any_batches(spark: SparkSession, purchases: Any) -> None:
    draw = random.Random(7)
    events = [
        bought(draw.random() * 3, draw.choice("abcde"), f"{draw.randint(1, 500) / 100:.2f}", draw.randint(0, 3))
        for _ in range(60)
    ]
    for start in range(0, 60, 20):
        purchases.append("pulse", "purchase", events[start : start + 20])
        process_sum(spark, purchases, 0)

    owed: dict[float, tuple[Any, ...]] = {}
    for hour in range(3):
        own = [row for row in events if int((row["event_time"] - START) / dt.timedelta(hours=1)) == hour]
        owed[hour] = (
            len(own),
            sum(row["amount"] for row in own),
            sum(row["items"] for row in own),
            0.5 * len(own),
            len({row["device_id"] for row in own}),
            len({row["amount"] for row in own}),
        )
    assert hours(purchases) == owed


@pytest.mark.integration
def test_an_estimate_is_within_its_error(spark: SparkSession, purchases: Any) -> None:
    for part in range(2):
        purchases.append("pulse", "purchase", [bought(0, f"d{number}", "1.00") for number in range(part * 500, 2_000)])
        process_sum(spark, purchases, 1)

    (row,) = purchases.rows("pulse", "estimated")
    assert row["events"] == 3_500
    # Five standard deviations.
    assert row["device_id_distinct"] == pytest.approx(2_000, rel=0.1)
