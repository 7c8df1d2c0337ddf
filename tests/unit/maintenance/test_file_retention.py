"""The retention is the longest needed, and at least the configured one."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.maintenance.vacuum_holds import (
    SHORTEST_RETENTION_HOURS,
    Hold,
    Retention,
    check_retention,
    effective_retention,
)

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def hold(hours: float, by: str = "the stream of b") -> Hold:
    return Hold(holder=by, since=NOW - dt.timedelta(hours=hours))


def kept(asked: int = 168, *, promised: int = 0, log: int = 168, holds: tuple[Hold, ...] = ()) -> Retention:
    return effective_retention(asked, promised_hours=promised, log_hours=log, holds=holds, now=NOW)


@pytest.mark.parametrize("hours", [0, -1])
def test_a_retention_of_less_than_an_hour_is_always_rejected(hours: int) -> None:
    for reason in ("", "a subject's rows have to go"):
        with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
            check_retention(hours, below_minimum=reason)


@pytest.mark.parametrize("hours", [1, 12, 23])
def test_a_listing_vacuum_keeps_files_longer_than_any_job_takes_to_commit_them(hours: int) -> None:
    check_retention(hours, below_minimum="the disk is full")
    check_retention(hours, below_minimum="the disk is full", mode="lite")

    with pytest.raises(ConfigError, match="Use mode lite, or 24 h or more"):
        check_retention(hours, below_minimum="the disk is full", mode="full")


@pytest.mark.parametrize(("hours", "reason", "refused"), [(167, "", True), (167, "  ", True), (24, "x", False)])
def test_less_than_seven_days_needs_a_reason(hours: int, reason: str, refused: bool) -> None:
    if refused:
        with pytest.raises(ConfigError, match="requires an approval"):
            check_retention(hours, below_minimum=reason)
    else:
        check_retention(hours, below_minimum=reason)
    check_retention(168)


def test_the_configured_retention_applies_without_holds() -> None:
    assert kept() == Retention(hours=168)
    assert kept(holds=(hold(100),)) == Retention(hours=168)
    assert kept(24, holds=(hold(20),)) == Retention(hours=24)


def test_the_slowest_reader_decides_and_is_named() -> None:
    found = kept(24, holds=(hold(30, "a"), hold(99.5, "the reader slow"), hold(60, "b")))

    assert (found.hours, found.skipped) == (102, False)
    assert "the reader slow needs the table as of 2026-02-25 08:30" in found.reason


@pytest.mark.parametrize(("promised", "holds"), [(0, (hold(30, "a"),)), (48, ())])
def test_a_run_that_does_not_yield_skips_a_table_that_somebody_needs_longer(
    promised: int, holds: tuple[Hold, ...]
) -> None:
    found = effective_retention(12, promised_hours=promised, log_hours=168, holds=holds, now=NOW, yields_to_holds=False)

    assert found.skipped
    assert "more than the 12 h of this run" in found.reason


def test_a_run_that_does_not_yield_keeps_its_hours_where_nobody_needs_more() -> None:
    found = effective_retention(12, promised_hours=0, log_hours=168, holds=(hold(5),), now=NOW, yields_to_holds=False)

    assert found == Retention(hours=12)


def test_declared_time_travel_extends_the_retention() -> None:
    found = kept(promised=240, log=240)

    assert (found.hours, found.skipped) == (240, False)
    assert "declared time travel of 240 h" in found.reason


@pytest.mark.parametrize(
    ("asked", "promised", "holds", "why"),
    [
        (168, 0, (hold(200),), "the stream of b needs"),
        (168, 240, (), "time travel of 240 h"),
        (300, 0, (), "a retention of 300 h is needed"),
        (168, 0, (Hold(holder="the reader r", since=None),), "no longer in the log"),
    ],
)
def test_a_hold_beyond_the_log_retention_skips_the_table(
    asked: int, promised: int, holds: tuple[Hold, ...], why: str
) -> None:
    found = kept(asked, promised=promised, holds=holds)

    assert found.skipped
    assert found.reason.startswith("skipped: ")
    assert why in found.reason


@given(
    st.integers(SHORTEST_RETENTION_HOURS, 720),
    st.integers(0, 720),
    st.integers(24, 720),
    st.lists(st.floats(0, 1_000), max_size=5),
)
def test_no_needed_file_is_deleted(asked: int, promised: int, log: int, ages: list[float]) -> None:
    found = kept(asked, promised=promised, log=log, holds=tuple(hold(age) for age in ages))

    assert found.hours >= max([asked, promised, *ages])
    assert found.skipped == (found.hours > log)
    assert bool(found.reason) == (found.hours > asked or found.skipped)
