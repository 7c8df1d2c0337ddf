"""VACUUM with a Spark session lists and deletes on its executors, by the same rules as a process without one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.maintenance.vacuum import VacuumResult, vacuum_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.file_workers import (
    MIN_ITEMS_FOR_EXECUTORS,
    ExecutorWorkers,
    ListedFile,
    TableFolder,
    file_size,
    list_folder,
)
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.maintenance.aged_tables import in_metadata, orphan, replaced
from tests.unit.maintenance.table_data import ORDERS, SHOP, make, project

KEY = paths.table("shop", "orders")
DAY = "event_date=2026-01-01"
OLD_HOURS = 200


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A pipeline with a table of forty days, created long ago, with more aged files than the driver deletes itself."""
    declared = project(tmp_path, shop=SHOP + ORDERS)
    lake = Lake(declared.environment.lake)
    make(lake, "shop", "orders", files=2, days=40)
    in_metadata(lake, KEY, createdTime=int((time.time() - 20 * 24 * 3600) * 1000))
    for number in range(MIN_ITEMS_FOR_EXECUTORS + 8):
        orphan(lake, KEY, f"{DAY}/aged {number}.parquet", age_hours=OLD_HOURS)
    return declared


def vacuumed(spark: SparkSession | None, catalog: Catalog, *, dry_run: bool = False) -> VacuumResult:
    session = None if spark is None else lambda: spark
    (result,) = vacuum_tables(session, catalog, "shop", tables=["orders"], dry_run=dry_run)
    return result


def test_executors_delete_the_aged_files_and_leave_all_others(spark: SparkSession, catalog: Catalog) -> None:
    lake = Lake(catalog.environment.lake)
    removed = replaced(lake, KEY, hours_ago=OLD_HOURS)
    then = time.time() - OLD_HOURS * 3600
    for path in removed:
        os.utime(path, (then, then))
    young = orphan(lake, KEY, f"{DAY}/young.parquet", age_hours=100)
    live = set(map(Path, (name.removeprefix("file://") for name in files_of(lake))))
    counted = vacuumed(None, catalog, dry_run=True)

    result = vacuumed(spark, catalog)

    assert (result.files, result.bytes) == (counted.files, counted.bytes)
    assert result.files == MIN_ITEMS_FOR_EXECUTORS + 8 + len(removed)
    assert result.engine.startswith("Spark's executors: ")
    assert not any(path.exists() for path in removed)
    assert young.exists()
    assert all(path.exists() for path in live)
    assert vacuumed(None, catalog, dry_run=True).files == 0


def files_of(lake: Lake) -> list[str]:
    return present(lake.open(KEY)).file_uris()


def test_a_table_with_few_requests_is_done_by_the_driver_which_the_result_says(
    spark: SparkSession, catalog: Catalog
) -> None:
    vacuumed(spark, catalog)
    old = orphan(Lake(catalog.environment.lake), KEY, "one.parquet", age_hours=OLD_HOURS)

    result = vacuumed(spark, catalog)

    # The listing of this run is weekly; the log alone names no orphan.
    assert (result.files, result.mode) == (0, "lite")
    assert result.engine.startswith("the driver of the Spark job")
    assert old.exists()


def test_executors_answer_in_the_order_of_the_items_also_for_those_that_are_not_there(
    spark: SparkSession, catalog: Catalog
) -> None:
    lake = Lake(catalog.environment.lake)
    table = TableFolder(lake, lake.objects, KEY)
    workers = ExecutorWorkers(spark, min_items=1)
    names = [name for number in range(9) for name in (f"{DAY}/aged {number}.parquet", f"{DAY}/none {number}")]

    sizes = list(workers.map(file_size, table, names))

    assert sizes == [
        os.stat(Path(table.lake.storage.prefix, KEY, name)).st_size if "aged" in name else None for name in names
    ]
    assert workers.executed == len(names)
    assert [[*map(ListedFile._make, files)] for files in workers.map(list_folder, table, [DAY])] == [
        list_folder(table, DAY)
    ]
