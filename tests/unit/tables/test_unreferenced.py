"""Unreferenced files in a table's folder: old orphans, but never files that a version or a writer may need."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control.provenance import user_metadata
from deltaworks.tables import protected_files
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.tables.protected_files import find_missing_files, table_retention_hours
from deltaworks.tables.vacuum_candidates import count_unreferenced

KEY = "tables/shop/events"
SCHEMA = pa.schema([("value", pa.int64())])


def fill(lake: Lake, *, retention: str = "interval 7 days") -> None:
    made = user_metadata(pipeline="shop", batch=1, operation="ingest")
    table = lake.ensure(KEY, SCHEMA, user_metadata=made, properties={"delta.deletedFileRetentionDuration": retention})
    for batch in (1, 2):
        rows = pa.table({"value": [batch]}, schema=SCHEMA)
        lake.append(table, KEY, rows, step=Step("shop/1", batch), user_metadata=made)


def orphan(lake: Lake, name: str, size: int, *, age_hours: float) -> None:
    path = Path(lake.storage.prefix, KEY, name)
    path.write_bytes(b"x" * size)
    written = time.time() - age_hours * 3600
    os.utime(path, (written, written))


def test_old_orphans_are_counted_and_young_ones_and_live_files_are_not(lake: Lake) -> None:
    fill(lake)
    orphan(lake, "old.parquet", 300, age_hours=200)
    orphan(lake, "older.parquet", 50, age_hours=400)
    orphan(lake, "young.parquet", 7, age_hours=100)
    for live in Path(lake.storage.prefix, KEY).glob("part-*.parquet"):
        os.utime(live, (0, 0))

    found = count_unreferenced(lake, KEY)

    assert found is not None
    assert (found.files, found.bytes) == (2, 350)


def test_a_large_table_is_not_listed(lake: Lake) -> None:
    fill(lake)
    orphan(lake, "old.parquet", 10, age_hours=200)

    assert count_unreferenced(lake, KEY, limit=1) is None
    assert count_unreferenced(lake, KEY, limit=2) is not None
    assert count_unreferenced(lake, "tables/shop/none") is None


@pytest.mark.parametrize("max_requests", [1_000, 0])
def test_a_file_of_another_size_than_the_log_says_is_as_missing_as_one_that_does_not_exist(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, max_requests: int
) -> None:
    monkeypatch.setattr(protected_files, "_MAX_STAT_REQUESTS", max_requests)
    fill(lake)
    fill(lake)
    files = state_at(lake, lake.objects, KEY).files
    gone, broken, *_ = sorted(path for path, _vector in files)
    assert find_missing_files(lake, KEY, files) == []

    Path(lake.storage.prefix, KEY, gone).unlink()
    Path(lake.storage.prefix, KEY, broken).write_bytes(b"not a Parquet file")
    assert find_missing_files(lake, KEY, files) == [gone, broken]


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("interval 7 days", 168),
        ("interval 1 week", 168),
        ("interval 240 hours", 240),
        ("2 days", 48),
        ("interval 30 days 12 hours", 732),
        ("INTERVAL 1 week 1 day 30 minutes", 193),
        ("interval 90 minutes", 2),
        ("interval 172800 seconds", 48),
        ("interval 1 months", 744),
        ("a fortnight", 878_400),
        ("interval 30 days and 12 hours", 878_400),
    ],
)
def test_the_retention_of_removed_files_is_the_tables_property(lake: Lake, text: str, hours: int) -> None:
    fill(lake, retention=text)
    table = lake.open(KEY)
    assert table is not None

    assert table_retention_hours(table) == hours
