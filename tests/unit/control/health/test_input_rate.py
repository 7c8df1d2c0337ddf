"""Missing input is detected by the median input of each hour of the day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltaworks.control.health.limits import (
    MAX_DAYS,
    MIN_DAYS,
    InputRate,
    median_input_rate,
    read_input_rate,
    silent_hour,
    sum_by_hour,
    write_input_rate,
)
from deltaworks.control.objects import LocalObjects

NOW = datetime(2026, 3, 30, 12, 0, tzinfo=UTC)


def input_rate_over(days: int, hours: range, *, rows: int = 50) -> InputRate:
    """The input rate of days with input at these hours."""
    today = NOW.replace(hour=0)
    inputs = [
        (today - timedelta(days=day) + timedelta(hours=hour, minutes=7), rows)
        for day in range(1, days + 1)
        for hour in hours
    ]
    return median_input_rate(sum_by_hour(inputs), first_input_at=today - timedelta(days=days), now=NOW)


def test_the_input_rate_is_the_median_of_each_hour() -> None:
    norm = input_rate_over(MAX_DAYS, range(8, 18))

    assert [hour for hour, rows in enumerate(norm.rows_by_hour) if rows] == list(range(8, 18))
    assert norm.rows_by_hour[8] == 50
    assert norm.days == MAX_DAYS


def test_one_extreme_day_and_one_lost_day_do_not_change_it() -> None:
    today = NOW.replace(hour=0)
    inputs = {today - timedelta(days=day) + timedelta(hours=9): 50 for day in range(1, MAX_DAYS + 1)}
    inputs[today - timedelta(days=3) + timedelta(hours=9)] = 9_000_000
    inputs[today - timedelta(days=4) + timedelta(hours=9)] = 0
    inputs[today - timedelta(days=5) + timedelta(hours=3)] = 7

    norm = median_input_rate(inputs, first_input_at=today - timedelta(days=MAX_DAYS), now=NOW)

    assert (norm.rows_by_hour[9], norm.rows_by_hour[3]) == (50, 0)


@pytest.mark.parametrize(
    ("last_input", "now", "silent_from"),
    [
        ("11:05", "12:59", None),
        ("11:05", "13:00", "12:00"),
        ("17:30", "23:59", None),
        ("17:30", "08:59+1", None),
        ("17:30", "09:00+1", "08:00"),
    ],
)
def test_a_full_hour_without_its_usual_rows_is_silence_but_a_usually_empty_hour_is_not(
    last_input: str, now: str, silent_from: str | None
) -> None:
    def at(text: str) -> datetime:
        clock, _, days = text.partition("+")
        hour, minute = map(int, clock.split(":"))
        return NOW.replace(hour=hour, minute=minute) + timedelta(days=int(days or 0))

    found = silent_hour(input_rate_over(MAX_DAYS, range(8, 18)), at(last_input), at(now))

    assert (f"{found:%H:%M}" if found else None) == silent_from


def test_too_few_days_give_no_input_rate() -> None:
    day_ago = NOW - timedelta(days=1)

    assert silent_hour(input_rate_over(MIN_DAYS - 1, range(24)), day_ago, NOW) is None
    assert silent_hour(input_rate_over(MIN_DAYS, range(24)), day_ago, NOW) is not None
    assert silent_hour(None, day_ago, NOW) is None


def test_the_input_rate_is_stored_and_a_damaged_one_is_none(local_objects: LocalObjects) -> None:
    norm = input_rate_over(MAX_DAYS, range(3))

    write_input_rate(local_objects, "norm.json", norm)
    local_objects.put("torn.json", b'{"format": 1, "rows')

    assert read_input_rate(local_objects, "norm.json") == norm
    assert read_input_rate(local_objects, "torn.json") is None
    assert read_input_rate(local_objects, "none.json") is None
