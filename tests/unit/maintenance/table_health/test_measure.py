"""Table health from the Delta log of tables on local disk, and its bounded score."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.provenance import user_metadata
from deltaworks.maintenance.table_health import measure as health
from deltaworks.maintenance.table_health.measure import (
    SIZE_BOUNDS,
    TableHealth,
    file_sizes_by_value,
    histogram,
    table_health,
)
from deltaworks.maintenance.table_health.report import WEIGHTS, Score, score
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, present

KEY = "tables/shop/events"
SCHEMA = pa.schema([("event_date", pa.date32()), ("value", pa.int64())])


def append(lake: Lake, batch: int, *days: int) -> None:
    made = user_metadata(pipeline="shop", batch=batch, operation="ingest")
    rows = [{"event_date": dt.date(2025, 3, day), "value": batch} for day in days]
    append_rows(lake, KEY, rows, schema=SCHEMA, number=batch, partition_by=["event_date"], user_metadata=made)


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
    table = present(lake.open(KEY))
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
    without = present(table_health(lake, KEY, partitions=False))
    assert (without.files, without.partition_health) == (3, ())


def test_the_log_is_measured_by_its_commits_and_checkpoints(lake: Lake) -> None:
    for batch in range(1, 4):
        append(lake, batch, 1)
    table = present(lake.open(KEY))
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


WELL = TableHealth(
    key="tables/shop/events", version=60, files=10, bytes=10 << 28, rows=1_000_000, small_files=0,
    small_file_share=0.0, partitions=10, partition_by=("event_date",), last_checkpoint=50,
    largest_partition_bytes=1 << 28, median_partition_bytes=float(1 << 28), deletion_vector_rows=0,
)  # fmt: skip


def part(found: Score, name: str) -> float:
    return {each.name: each.cost for each in found.parts}[name]


def tables() -> st.SearchStrategy[TableHealth]:
    @st.composite
    def draw(pick: Any) -> TableHealth:
        files = pick(st.integers(0, 100_000))
        small = pick(st.integers(0, files))
        rows = pick(st.none() | st.integers(0, 10**12))
        deleted = pick(st.none() | st.integers(0, rows or 0))
        partitions = pick(st.integers(1, 50_000)) if files else 0
        median = pick(st.floats(0, 1e12))
        return dataclasses.replace(
            WELL,
            version=pick(st.integers(0, 10**6)),
            last_checkpoint=None,
            files=files,
            bytes=pick(st.integers(0, 10**15)),
            rows=rows,
            small_files=small,
            small_file_share=small / files if files else 0.0,
            partitions=partitions,
            median_partition_bytes=median,
            largest_partition_bytes=int(median * pick(st.floats(1, 1e4))),
            deletion_vector_rows=deleted,
        )

    return draw()


def test_the_weights_are_a_hundred_points() -> None:
    assert sum(WEIGHTS.values()) == 100


def test_a_healthy_or_empty_table_has_all_points() -> None:
    empty = dataclasses.replace(WELL, files=0, bytes=0, rows=0, partitions=0, median_partition_bytes=0.0)

    assert score(WELL, unordered_share=0.0, unreferenced_bytes=0).value == 100
    assert score(empty, unreferenced_bytes=0).value == 100


@pytest.mark.parametrize(
    ("name", "changes", "facts", "cost"),
    [
        ("small_files", {"files": 100, "small_files": 100, "small_file_share": 1.0}, {}, 30.0),
        ("small_files", {"files": 5, "small_files": 5, "small_file_share": 1.0}, {}, 3.0),
        ("order", {}, {"unordered_share": 0.5}, 10.0),
        ("deletion_vectors", {"deletion_vector_rows": 100_000}, {}, 7.5),
        ("log", {"version": 349}, {}, 7.5),
        ("log", {"version": 149}, {}, 0.0),
        ("partitions", {"partitions": 1_000, "bytes": 1_000, "files": 1_000}, {}, 10.0),
        ("partitions", {"largest_partition_bytes": 50 << 28}, {}, 3.3),
        ("unreferenced", {}, {"unreferenced_bytes": 10 << 28}, 10.0),
    ],
)
def test_each_problem_costs_only_its_part(
    name: str, changes: dict[str, Any], facts: dict[str, Any], cost: float
) -> None:
    changed = dataclasses.replace(WELL, last_checkpoint=49, **changes)

    found = score(changed, **facts)

    assert part(found, name) == cost
    assert {each.name for each in found.costly} == ({name} if cost else set())
    assert found.value == round(100 - cost)
    assert next(each.reason for each in found.parts if each.name == name)


def test_unknown_parts_cost_nothing() -> None:
    unknown = dataclasses.replace(WELL, rows=None, deletion_vector_rows=None)

    found = score(unknown)

    assert found.value == 100
    said = {each.name: each.reason for each in found.parts}
    assert "unknown" in said["deletion_vectors"]
    assert said["unreferenced"] == "not measured"


@given(tables(), st.none() | st.floats(0, 1), st.none() | st.integers(0, 10**15))
def test_a_score_is_100_minus_its_parts(health: TableHealth, unordered: float | None, unreferenced: int | None) -> None:
    found = score(health, unordered_share=unordered, unreferenced_bytes=unreferenced)

    assert 0 <= found.value <= 100
    assert all(0 <= each.cost <= each.weight for each in found.parts)
    assert found.value == round(100 - sum(each.cost for each in found.parts))
    assert [each.name for each in found.parts] == list(WEIGHTS)


@given(tables(), st.integers(1, 1_000))
def test_more_small_files_and_more_commits_never_make_a_table_better(health: TableHealth, more: int) -> None:
    files, small = health.files + more, health.small_files + more
    worse = dataclasses.replace(
        health, files=files, small_files=small, small_file_share=small / files, version=health.version + more
    )

    before, after = score(health), score(worse)

    assert part(after, "small_files") >= part(before, "small_files")
    assert part(after, "log") >= part(before, "log")


@given(st.lists(st.integers(0, 4 << 30)))
def test_every_file_is_in_one_bucket_of_the_histogram(sizes: list[int]) -> None:
    found = histogram(sizes)

    assert len(found) == len(SIZE_BOUNDS) + 1
    assert sum(found) == len(sizes)
    for index, bound in enumerate(SIZE_BOUNDS):
        assert sum(found[: index + 1]) == sum(1 for size in sizes if size < bound)
