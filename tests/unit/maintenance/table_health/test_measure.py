"""Table health from the Delta log of tables on local disk."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control.provenance import user_metadata
from deltaworks.maintenance.table_health import measure as health
from deltaworks.maintenance.table_health.measure import file_sizes_by_value, table_health
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

KEY = "tables/shop/events"
SCHEMA = pa.schema([("event_date", pa.date32()), ("value", pa.int64())])


def append(lake: Lake, batch: int, *days: int) -> None:
    made = user_metadata(pipeline="shop", batch=batch, operation="ingest")
    table = lake.ensure(KEY, SCHEMA, user_metadata=made, partition_by=["event_date"])
    dates = [dt.date(2025, 3, day) for day in days]
    rows = pa.table({"event_date": dates, "value": [batch] * len(days)}, schema=SCHEMA)
    lake.append(table, KEY, rows, step=Step("shop/1/events", batch), user_metadata=made)


def test_measures_are_of_the_newest_version(lake: Lake) -> None:
    append(lake, 1, 1, 1, 2)
    append(lake, 2, 1, 3)

    found = table_health(lake, KEY)

    assert found is not None
    files = list(Path(lake.storage.prefix, KEY).glob("event_date=*/*.parquet"))
    assert (found.version, found.files, found.rows, found.partitions) == (2, 4, 5, 3)
    assert found.bytes == sum(file.stat().st_size for file in files)
    assert found.partition_by == ("event_date",)
    assert found.average_file_bytes == found.bytes / 4
    assert {value: len(sizes) for value, sizes in file_sizes_by_value(lake, KEY, "event_date").items()} == {
        "2025-03-01": 2,
        "2025-03-02": 1,
        "2025-03-03": 1,
    }


def test_only_small_files_that_could_be_merged_count_as_small(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    append(lake, 1, 1, 2)
    append(lake, 2, 1)
    append(lake, 3, 1)

    found = table_health(lake, KEY)
    monkeypatch.setattr(health, "SMALL_FILE_BYTES", 1)
    with_large_files = table_health(lake, KEY)

    assert found is not None
    assert with_large_files is not None
    assert (found.small_files, found.small_file_share) == (3, 0.75)
    assert (with_large_files.small_files, with_large_files.small_file_share) == (0, 0.0)


def test_last_operations_name_version_and_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_RUN", "shop__maintenance/r1/optimize_tables/1")
    append(lake, 1, 1)
    append(lake, 2, 1)
    table = lake.open(KEY)
    assert table is not None
    table.optimize.compact()
    table.create_checkpoint()

    found = table_health(lake, KEY)

    assert found is not None
    assert {kind: operation.version for kind, operation in found.last_operations.items()} == {
        "CREATE TABLE": 0,
        "WRITE": 2,
        "OPTIMIZE": 3,
    }
    assert found.last_operations["WRITE"].run == "shop__maintenance/r1/optimize_tables/1"
    assert found.last_operations["OPTIMIZE"].run is None
    assert (found.last_checkpoint, found.commits_since_checkpoint) == (3, 0)


def test_a_missing_table_has_no_health(lake: Lake) -> None:
    assert table_health(lake, KEY) is None
    assert file_sizes_by_value(lake, KEY, "event_date") == {}


def test_partition_health_counts_mergeable_files(lake: Lake) -> None:
    append(lake, 1, 1, 2)
    append(lake, 2, 1, 1)

    found = table_health(lake, KEY)

    assert found is not None
    first, second = found.partition_health
    assert first.partition == (("event_date", "2025-03-01"),)
    assert (first.files, first.small_files, first.small_bytes, first.rows) == (2, 2, first.bytes, 3)
    assert (second.files, second.small_files, second.small_bytes, second.rows) == (1, 0, 0, 1)
    assert (first.deletion_vector_rows, second.deletion_vector_rows) == (0, 0)
    assert first.newest_file_at >= second.newest_file_at
    assert first.bytes + second.bytes == found.bytes
    without = table_health(lake, KEY, partitions=False)
    assert without is not None
    assert (without.files, without.partition_health) == (3, ())


def test_the_log_is_measured_by_its_commits_and_checkpoints(lake: Lake) -> None:
    for batch in range(1, 4):
        append(lake, batch, 1)
    table = lake.open(KEY)
    assert table is not None
    table.create_checkpoint()
    folder = Path(lake.storage.prefix, KEY, "_delta_log")

    found = table_health(lake, KEY)

    assert found is not None
    assert found.log is not None
    assert (found.log.commits, found.log.checkpoint_files) == (4, 1)
    assert found.log.commit_bytes == sum(file.stat().st_size for file in folder.glob("*.json"))
    checkpoint = next(folder.glob("*.checkpoint.parquet"))
    assert found.log.bytes == found.log.commit_bytes + checkpoint.stat().st_size
    assert found.log.checkpoint_at == pytest.approx(
        dt.datetime.fromtimestamp(checkpoint.stat().st_mtime, tz=dt.UTC), abs=dt.timedelta(seconds=1)
    )


def test_skew_is_relative_to_the_median_partition(lake: Lake) -> None:
    append(lake, 1, 1, 2, 3)
    for batch in range(2, 12):
        append(lake, batch, 1)

    found = table_health(lake, KEY)

    assert found is not None
    assert found.largest_partition_bytes == max(each.bytes for each in found.partition_health)
    assert found.skew == pytest.approx(11, rel=0.01)
    assert sum(found.size_histogram) == found.files == found.size_histogram[0]
