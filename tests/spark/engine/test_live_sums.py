"""Sums and distinct counts of a live table: exact within the watermark, across batches and duplicates."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.engine.live import start_live_query
from tests.spark.made_pulse import HEAD

PULSE = (
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
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (PULSE, {})})


def bought(hours: float, device: str | None, amount: str | None, items: int | None = 1) -> dict[str, Any]:
    price = None if amount is None else Decimal(amount)
    time = START + dt.timedelta(hours=hours)
    return {"event_time": time, "device_id": device, "amount": price, "items": items, "weight": 0.5}


def process_available(spark: SparkSession, pulse: Any, number: int) -> None:
    query = start_live_query(spark, pulse.catalog, "pulse", pulse.spec("pulse").live[number], available_now=True)
    query.awaitTermination(120)
    assert query.exception() is None


def hours(pulse: Any) -> dict[float, tuple[Any, ...]]:
    names = ("events", "amount_sum", "items_sum", "weight_sum", "device_id_distinct", "amount_distinct")
    rows = pulse.rows("pulse", "bookings")
    return {(row["window_start"] - START) / dt.timedelta(hours=1): tuple(row[name] for name in names) for row in rows}


@pytest.mark.integration
def test_sums_grow_with_each_batch_and_duplicates_add_no_distinct_values(spark: SparkSession, pulse: Any) -> None:
    first = [bought(0, "a", "4.99"), bought(0.5, "b", "0.01"), bought(0.6, None, None, None), bought(1, "a", "1.00")]
    pulse.append("pulse", "purchase", first)
    process_available(spark, pulse, 0)
    assert hours(pulse) == {
        0: (3, Decimal("5.00"), 2, 1.5, 2, 2),
        1: (1, Decimal("1.00"), 1, 0.5, 1, 1),
    }
    # One again, one late but within the watermark, one new.
    pulse.append("pulse", "purchase", [first[0], bought(0.9, "c", "4.99"), bought(2, "a", "9999999999.99")])
    process_available(spark, pulse, 0)

    assert hours(pulse) == {
        0: (5, Decimal("14.98"), 4, 2.5, 3, 2),
        1: (1, Decimal("1.00"), 1, 0.5, 1, 1),
        2: (1, Decimal("9999999999.99"), 1, 0.5, 1, 1),
    }


def test_sums_equal_those_of_a_full_pass_for_any_batches(spark: SparkSession, pulse: Any) -> None:
    draw = random.Random(7)
    events = [
        bought(draw.random() * 3, draw.choice("abcde"), f"{draw.randint(1, 500) / 100:.2f}", draw.randint(0, 3))
        for _ in range(60)
    ]
    for start in range(0, 60, 20):
        pulse.append("pulse", "purchase", events[start : start + 20])
        process_available(spark, pulse, 0)

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
    assert hours(pulse) == owed


@pytest.mark.integration
def test_an_estimate_is_within_its_error(spark: SparkSession, pulse: Any) -> None:
    for part in range(2):
        pulse.append("pulse", "purchase", [bought(0, f"d{number}", "1.00") for number in range(part * 500, 2_000)])
        process_available(spark, pulse, 1)

    (row,) = pulse.rows("pulse", "estimated")
    assert row["events"] == 3_500
    # Five standard deviations.
    assert row["device_id_distinct"] == pytest.approx(2_000, rel=0.1)
