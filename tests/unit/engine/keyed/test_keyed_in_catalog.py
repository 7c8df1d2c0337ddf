"""Keyed tables in SQL, listings, OPTIMIZE, VACUUM, orphan removal and checks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.orphans import remove_orphans
from deltaworks.maintenance.table_health.catalog_tables import all_tables, declared_tables
from deltaworks.maintenance.vacuum import _select_tables
from deltaworks.recovery.repair.log_gap import check_pipeline
from deltaworks.recovery.restore.dependents import reject_mutable
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.query import connect
from deltaworks.testing import catalog_of
from tests.unit.engine.keyed.keyed_harness import LATEST, KeyedHarness, declared, tick


@pytest.fixture
def harness(tmp_path: Path) -> KeyedHarness:
    made = KeyedHarness(tmp_path, declared(deleted_when={"op": "d"}))
    made.append([tick("a", 1), tick("b", 1)])
    made.append([tick("a", 2, op="d")])
    made.follow()
    return made


@pytest.fixture
def catalog(harness: KeyedHarness) -> Catalog:
    return catalog_of(harness.root, harness.spec, lake=harness.lake.storage)


def test_sql_shows_it_without_deleted_keys(catalog: Catalog) -> None:
    connection, names = connect(catalog)

    assert f"market.{LATEST}" in names
    assert connection.sql(f"SELECT symbol FROM market.{LATEST}").fetchall() == [("b",)]


def test_it_is_listed_with_its_health(harness: KeyedHarness, catalog: Catalog) -> None:
    (table,) = (table for table in all_tables(harness.lake, catalog) if table.name == LATEST)

    assert (table.kind, table.error) == ("keyed", "")
    assert table.health is not None
    assert table.health.rows == 2
    assert len({table.key for table in declared_tables(catalog)}) == len(declared_tables(catalog))


def test_maintenance_takes_its_write_turn(harness: KeyedHarness, catalog: Catalog) -> None:
    optimized = optimized_tables(harness.spec)[LATEST]

    assert optimized.needs_write_turn
    assert read_layout(harness.lake, "market", optimized).has_mutable_rows
    assert LATEST in _select_tables(harness.spec, None)
    assert LATEST in {result.target for result in remove_orphans(catalog, "market", dry_run=True)}


def test_it_is_not_restored_separately(harness: KeyedHarness) -> None:
    with pytest.raises(ConfigError, match="Keyed, gold and live tables follow"):
        reject_mutable(harness.spec, LATEST)


def test_a_damaged_one_is_rebuilt(harness: KeyedHarness, catalog: Catalog) -> None:
    folder = harness.root / paths.table("market", LATEST)
    next(folder.glob("*.parquet")).unlink()
    (damage,) = check_pipeline(catalog, "market", table=LATEST)

    assert "which rebuilds it from 'ticks'" in damage.repair
    shutil.move(folder, folder.with_name("aside"))
    harness.follow()
    assert harness.latest() == harness.expected()
