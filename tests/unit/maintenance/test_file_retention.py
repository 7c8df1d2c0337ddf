"""File retention is the longest needed; the first night on an existing lake is a dry run, none exceeds its limit."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError
from deltaworks.maintenance import deletion_limits
from deltaworks.maintenance.deletion_limits import DeletionLimit, first_night_reason
from deltaworks.maintenance.vacuum import VacuumResult, limit_exceeded
from deltaworks.maintenance.vacuum_holds import (
    SHORTEST_RETENTION_HOURS,
    Hold,
    Retention,
    check_retention,
    effective_retention,
)
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import make

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


TABLES = ["orders", "quarantine"]
MONTH = dt.timedelta(days=30)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def home(lake: Lake) -> PipelineHome:
    return PipelineHome.open(lake.storage, "shop")


def open_alerts(home: PipelineHome) -> list[str]:
    return [alert.cause for alert in alerts(home.objects) if alert.state.is_open]


def test_a_new_lake_deletes_from_its_first_night(lake: Lake, home: PipelineHome) -> None:
    make(lake, "shop", "orders", files=1, days=1)

    assert first_night_reason(lake, home, TABLES) == ""
    assert first_night_reason(lake, home, TABLES, now=utc_now() + MONTH) == ""
    assert open_alerts(home) == []


def test_a_pipeline_without_tables_is_new(lake: Lake, home: PipelineHome) -> None:
    assert first_night_reason(lake, home, TABLES, now=utc_now() + MONTH) == ""


def test_the_first_night_on_an_existing_lake_is_a_dry_run(lake: Lake, home: PipelineHome) -> None:
    make(lake, "shop", "orders", files=1, days=1)
    begun = utc_now() + MONTH

    first = first_night_reason(lake, home, TABLES, now=begun)
    later_that_night = first_night_reason(lake, home, TABLES, now=begun + 12 * HOUR)

    assert first == later_that_night
    assert f"nights from {begun + 18 * HOUR:%Y-%m-%d %H:%M} UTC on delete" in first
    assert open_alerts(home) == ["MAINTENANCE_DRY_RUN"]
    assert first_night_reason(lake, home, TABLES, now=begun + 24 * HOUR) == ""
    assert open_alerts(home) == []


def test_another_process_and_a_restart_see_the_same_first_night(lake: Lake, home: PipelineHome) -> None:
    make(lake, "shop", "orders", files=1, days=1)
    begun = utc_now() + MONTH
    first_night_reason(lake, home, TABLES, now=begun)

    restarted = PipelineHome.open(lake.storage, "shop")

    assert first_night_reason(Lake(lake.storage), restarted, TABLES, now=begun + HOUR) != ""
    assert first_night_reason(Lake(lake.storage), restarted, TABLES, now=begun + 24 * HOUR) == ""


def test_a_declared_dry_run_counts_as_the_first_night(lake: Lake, home: PipelineHome) -> None:
    make(lake, "shop", "orders", files=1, days=1)
    begun = utc_now() + MONTH

    assert first_night_reason(lake, home, TABLES, alert=False, now=begun) != ""
    assert open_alerts(home) == []
    assert first_night_reason(lake, home, TABLES, now=begun + 24 * HOUR) == ""


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"at": "yesterday", "new": true}', b'{"new": true}'])
def test_an_unreadable_record_restarts_the_first_night(lake: Lake, home: PipelineHome, torn: bytes) -> None:
    home.objects.put(paths.first_maintenance("shop"), torn)
    now = utc_now()

    assert first_night_reason(lake, home, TABLES, now=now) != ""
    assert first_night_reason(lake, home, TABLES, now=now + 24 * HOUR) == ""


def test_a_limit_is_a_share_and_allows_small_amounts() -> None:
    half = DeletionLimit(share=0.5)

    assert (half.max_rows(100), half.max_rows(100_000)) == (deletion_limits.UNLIMITED_ROWS, 50_000)
    assert (half.max_bytes(0), half.max_bytes(1 << 40)) == (deletion_limits.UNLIMITED_BYTES, 1 << 39)
    assert DeletionLimit(share=1).max_rows(7) == 7


def test_vacuum_skips_a_table_beyond_the_limit() -> None:
    counted = VacuumResult(table="orders", dry_run=True, files=900, bytes=9 << 30, mode="lite")
    bound = DeletionLimit(share=0.75)

    refused = limit_exceeded(counted, bound, live_bytes=1 << 30)

    assert limit_exceeded(counted, bound, live_bytes=3 << 30) is None
    assert refused is not None
    assert (refused.skipped, refused.files, refused.bytes, refused.dry_run) == (True, 0, 0, False)
    assert "deleting 900 files, 90% of its 10.7 GB on storage" in refused.reason
