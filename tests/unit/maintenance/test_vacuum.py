"""VACUUM counts first, deletes only old files, and rejects a short retention, without a JVM."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects, ObjectStore, open_objects
from deltaworks.errors import ConfigError
from deltaworks.maintenance import deletion_limits
from deltaworks.maintenance.deletion_limits import DeletionLimit
from deltaworks.maintenance.vacuum import VacuumResult, vacuum_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import present
from tests.unit.maintenance.aged_tables import commit_file, in_metadata, made_at, orphan, replaced
from tests.unit.maintenance.table_data import ORDERS, SHOP, append, make, project

KEY = paths.table("shop", "orders")
DAY = "event_date=2026-01-01"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A pipeline with a new table of two files in one day."""
    declared = project(tmp_path, shop=SHOP + ORDERS)
    lake = Lake(declared.environment.lake)
    make(lake, "shop", "orders", files=1, days=1)
    append(lake, KEY, 1)
    return declared


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return Lake(catalog.environment.lake)


@pytest.fixture
def old(catalog: Catalog, lake: Lake) -> Catalog:
    """The same with a table created twenty days ago."""
    in_metadata(lake, KEY, createdTime=int((time.time() - 20 * 24 * 3600) * 1000))
    return catalog


def vacuum(catalog: Catalog, **options: Any) -> VacuumResult:
    (result,) = vacuum_tables(None, catalog, "shop", **{"tables": ["orders"], "dry_run": False, **options})
    return result


def rows(lake: Lake) -> int:
    return int(present(lake.rows(KEY)).num_rows)


def history(lake: Lake) -> list[Any]:
    opened = present(lake.open(KEY))
    return list(commit_history(lake, KEY, newest=opened.version()))


def test_a_dry_run_counts_files_and_bytes_and_deletes_nothing(old: Catalog, lake: Lake) -> None:
    dead = orphan(lake, KEY, f"{DAY}/old orphan%20.parquet", age_hours=200)
    orphan(lake, KEY, f"{DAY}/new.parquet", age_hours=100)
    before = len(history(lake))

    results = {result.table: result for result in vacuum_tables(None, old, "shop")}

    assert (results["orders"].files, results["orders"].bytes, results["orders"].dry_run) == (1, 1000, True)
    assert results["quarantine"].reason == "it does not exist yet"
    assert dead.exists()
    assert len(history(lake)) == before


def test_a_longer_retention_is_honoured_and_commits_name_their_run(old: Catalog, lake: Lake) -> None:
    older, younger = (orphan(lake, KEY, f"{DAY}/{hours}.parquet", age_hours=hours) for hours in (400, 200))
    left_out = vacuum(old, retention_hours=300)
    assert "skipped: a retention of 300 h is needed, but its log keeps 168 h" in left_out.reason
    in_metadata(lake, KEY, configuration={"delta.deletedFileRetentionDuration": "interval 300 hours"})

    result = vacuum(old, retention_hours=300)

    assert (result.files, result.bytes) == (1, 1000)
    assert (older.exists(), younger.exists()) == (False, True)
    assert rows(lake) == 20
    end, start, *_ = history(lake)
    assert (end.operation, start.operation) == ("VACUUM END", "VACUUM START")
    assert (end.metrics["numDeletedFiles"], start.metrics["sizeOfDataToDelete"]) == ("1", "1000")
    assert {end.metadata["operation"], start.metadata["operation"]} == {"vacuum"}


def test_a_table_younger_than_the_retention_has_nothing_to_delete(catalog: Catalog) -> None:
    assert vacuum(catalog, dry_run=True).reason == "it was created less than 168 h ago"


def test_a_retention_below_seven_days_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
        vacuum(catalog, retention_hours=167)
    with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
        vacuum(catalog, retention_hours=0, below_minimum="it is a test")


def test_a_short_retention_needs_a_reason_and_respects_holds(old: Catalog, lake: Lake) -> None:
    gone = replaced(lake, KEY, hours_ago=50)
    young = orphan(lake, KEY, f"{DAY}/young.parquet", age_hours=40)
    home = PipelineHome(open_objects(old.environment.lake), "shop")
    home.readers.pin("orders", reader="slow", version=0, hours=1)
    made_at(lake, KEY, 0, hours_ago=60)

    held = vacuum(old, retention_hours=48, below_minimum="a test")
    assert (held.files, held.skipped) == (0, True)
    assert "the reader slow" in held.reason
    assert "more than the 48 h of this run" in held.reason
    assert all(path.exists() for path in gone)

    home.readers.unpin("orders", reader="slow")
    done = vacuum(old, retention_hours=48, below_minimum="a test")
    assert (done.files, done.retention_hours, done.reason) == (len(gone), 48, "FULL: no FULL run yet")
    assert not any(path.exists() for path in gone)
    assert young.exists()
    assert rows(lake) == 20
    assert history(lake)[0].metadata["below_minimum"] == "a test"


def test_twelve_hours_delete_what_commits_removed_and_leave_what_is_not_committed(old: Catalog, lake: Lake) -> None:
    gone = replaced(lake, KEY, hours_ago=13)
    uncommitted = orphan(lake, KEY, f"{DAY}/uncommitted.parquet", age_hours=100)

    done = vacuum(old, retention_hours=12, below_minimum="the disk is full")

    assert (done.files, done.mode, done.retention_hours) == (len(gone), "lite", 12)
    assert not any(path.exists() for path in gone)
    assert uncommitted.exists()
    assert rows(lake) == 20
    with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
        vacuum(old, retention_hours=12, below_minimum="the disk is full", mode="full")


def test_lite_follows_a_full_run_and_falls_back_to_full(old: Catalog, lake: Lake) -> None:
    first = vacuum(old)
    assert (first.mode, first.reason) == ("full", "FULL: no FULL run yet")

    gone = replaced(lake, KEY, hours_ago=200)
    lost = orphan(lake, KEY, f"{DAY}/lost.parquet", age_hours=200)
    second = vacuum(old)
    assert (second.mode, second.files, second.reason) == ("lite", len(gone), "")
    assert not any(path.exists() for path in gone)
    assert lost.exists()

    cleaned_up(lake, aged_hours=190)
    third = vacuum(old)
    assert (third.mode, third.files) == ("full", 1)
    assert third.reason == "FULL: its log does not reach back to the last VACUUM"
    assert not lost.exists()
    assert rows(lake) == 20


def cleaned_up(lake: Lake, *, aged_hours: float) -> None:
    """Cleans the log like Delta: removes commits before the last checkpoint, and the last VACUUM record."""
    table = present(lake.open(KEY))
    table.create_checkpoint()
    log = commit_file(lake, KEY, 0).parent
    for path in (*sorted(log.glob("0*.json"))[:-1], *log.glob("_last_vacuum_info")):
        path.unlink()
    aged = time.time() - aged_hours * 3600
    for path in log.glob("0*"):
        os.utime(path, (aged, aged))


def test_lite_skips_a_table_whose_log_is_too_short(old: Catalog, lake: Lake) -> None:
    replaced(lake, KEY, hours_ago=200)
    cleaned_up(lake, aged_hours=190)

    result = vacuum(old, mode="lite")

    assert result.reason == "skipped: its log does not reach back to the last VACUUM; use mode full"
    assert result.skipped


def test_a_full_run_records_where_lite_continues(old: Catalog, lake: Lake) -> None:
    replaced(lake, KEY, hours_ago=200)
    newest = len(history(lake)) - 1
    assert vacuum(old).mode == "full"
    table = present(lake.open(KEY))
    table.create_checkpoint()
    for version in range(newest + 1):
        commit_file(lake, KEY, version).unlink()

    assert vacuum(old).mode == "lite"


def test_a_failed_vacuum_is_in_the_history_and_repeated(
    old: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = orphan(lake, KEY, f"{DAY}/dead.parquet", age_hours=200)

    def away(self: ObjectStore, key: str) -> None:
        raise OSError(f"no answer to {key}")

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjects, "delete", away)
        with pytest.raises(OSError, match="no answer"):
            vacuum(old)

    assert [commit.operation for commit in history(lake)[:2]] == ["VACUUM END", "VACUUM START"]
    assert vacuum(old).files == 1
    assert not dead.exists()


def test_no_more_files_are_deleted_than_approved(old: Catalog, lake: Lake) -> None:
    dead = [orphan(lake, KEY, f"{DAY}/{number}.parquet", age_hours=200) for number in range(2)]

    with pytest.raises(ConfigError, match="VACUUM_TOO_LARGE"):
        vacuum(old, max_files=1)
    assert all(path.exists() for path in dead)

    assert vacuum(old, max_files=2).files == 2


def test_a_table_beyond_the_limit_is_skipped(old: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_limits, "UNLIMITED_BYTES", 0)
    dead = orphan(lake, KEY, f"{DAY}/dead.parquet", age_hours=200)
    dead.write_bytes(b"x" * 1_000_000)
    os.utime(dead, (0, 0))

    result = vacuum(old, limit=DeletionLimit(share=0.5))

    assert result.skipped
    assert "exceeds max_removed_share" in result.reason
    assert dead.exists()
    assert vacuum(old, limit=DeletionLimit(share=1)).files == 1


def test_a_table_with_unsupported_features_is_left_to_spark(old: Catalog, lake: Lake) -> None:
    dead = orphan(lake, KEY, f"{DAY}/dead.parquet", age_hours=200)
    newer = '{"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}}\n'
    commit_file(lake, KEY, len(history(lake))).write_text(newer)

    result = vacuum(old)

    assert result.skipped
    assert result.reason == "skipped: only Spark can vacuum it: the feature inCommitTimestamp"
    assert dead.exists()
