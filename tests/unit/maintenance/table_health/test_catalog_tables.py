"""All declared tables with health, read in parallel; a damaged one has an error."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control.provenance import user_metadata
from deltaworks.maintenance.table_health import catalog_tables as known_tables
from deltaworks.maintenance.table_health.catalog_tables import DeclaredTable, all_tables, declared_tables, with_health
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows

SCHEMA = pa.schema([("value", pa.int64())])


def known(lake: Lake, count: int) -> list[DeclaredTable]:
    made = user_metadata(pipeline="shop", batch=1, operation="ingest")
    tables = [DeclaredTable("shop", f"t{index}", "bronze", f"tables/shop/t{index}") for index in range(count)]
    for index, table in enumerate(tables):
        append_rows(lake, table.key, [{"value": value} for value in range(index)], schema=SCHEMA, user_metadata=made)
    return tables


def test_all_declared_tables_are_listed(lake: Lake) -> None:
    catalog = load_catalog("local")

    found = {(table.owner, table.name): table for table in all_tables(lake, catalog)}

    kinds = {table.kind for table in found.values()}
    declared = {"bronze", "quarantine", "live", "keyed", "reference", "gold", "control", "mutations"}
    assert kinds | {"mutations"} == declared
    assert found["games", "events"].key == "tables/games/events"
    assert found["landing", "file_events"].key == "control/relays/landing/file_events"
    assert all(table.health is None and not table.error for table in found.values())
    assert not [table for table in all_tables(lake, catalog, control=False) if table.kind == "control"]
    assert {table.owner for table in declared_tables(catalog, pipeline="games")} == {"games"}


def test_tables_are_read_in_parallel_and_returned_in_order(lake: Lake) -> None:
    tables = known(lake, 3 * known_tables.READER_THREADS)

    found = with_health(lake.storage, tables)

    assert [table.name for table in found] == [table.name for table in tables]
    assert [table.health.rows for table in found if table.health] == list(range(len(tables)))


@pytest.mark.parametrize("damage", ["torn", "no protocol", "gap"])
def test_an_unreadable_table_has_an_error(lake: Lake, damage: str) -> None:
    tables = known(lake, 3)
    log = Path(lake.storage.prefix, tables[1].key, "_delta_log")
    first = log / f"{0:020d}.json"
    if damage == "torn":
        first.write_text(first.read_text()[:40])
    elif damage == "no protocol":
        lines = [line for line in first.read_text().splitlines() if "protocol" not in json.loads(line)]
        first.write_text("\n".join(lines))
    else:
        first.unlink()

    found = with_health(lake.storage, tables)

    assert [bool(table.error) for table in found] == [False, True, False]
    assert [table.health is not None for table in found] == [True, False, True]
    assert len(found[1].error) <= 300
