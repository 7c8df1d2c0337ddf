"""The first night on an existing lake is a dry run, and no night exceeds its limit."""

from __future__ import annotations

import datetime as dt

import pytest

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.maintenance import deletion_limits
from deltaworks.maintenance.deletion_limits import DeletionLimit, first_night_reason
from deltaworks.maintenance.vacuum import VacuumResult, limit_exceeded
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import make

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
