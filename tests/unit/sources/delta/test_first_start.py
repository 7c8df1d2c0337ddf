"""A stream waits at its first start for a table that the other pipeline declares and has not created yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.errors import ContractError
from deltaworks.sources import delta
from deltaworks.sources.delta import DeltaSource
from deltaworks.specs.catalog import Catalog
from tests.unit.maintenance.table_data import SHOP, project

COPY = """\
pipeline: copy
description: a copy of orders
owner: tests
source: {{kind: delta, pipeline: shop, table: {table}}}
event: {{name: {{path: event_name}}, time: {{path: event_time}}}}
tables: [{{name: copied, catch_all: true}}]
"""
TABLES = "tables: [{name: orders, catch_all: true}]\n"


@pytest.fixture
def reader(tmp_path: Path) -> Callable[..., tuple[DeltaSource, Catalog]]:
    def make(table: str = "orders") -> tuple[DeltaSource, Catalog]:
        catalog = project(tmp_path, shop=SHOP + TABLES, copy=COPY.format(table=table))
        return DeltaSource(catalog, catalog.pipeline("copy")), catalog

    return make


@pytest.fixture(autouse=True)
def polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_POLL_SECONDS", 0.01)


def test_a_declared_table_is_waited_for(reader: Callable[..., tuple[DeltaSource, Catalog]]) -> None:
    delta_source, catalog = reader()
    uri = catalog.environment.lake.uri(paths.table("shop", "orders")).removeprefix("file://")
    begun = threading.Event()

    def create() -> None:
        begun.set()
        write_deltalake(uri, pa.table({"event_name": ["order"]}))

    creation = threading.Timer(0.2, create)
    creation.start()

    delta_source._check(first_start=True)

    assert begun.is_set()
    creation.join()


def test_a_declared_table_that_is_not_created_is_missing(
    reader: Callable[..., tuple[DeltaSource, Catalog]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_TABLE_SECONDS", 0.05)

    with pytest.raises(ContractError, match="DELTA_SOURCE_MISSING"):
        reader()[0]._check(first_start=True)


@pytest.mark.parametrize(("table", "first_start"), [("other", True), ("orders", False)])
def test_an_undeclared_table_and_one_that_was_read_before_are_not_waited_for(
    reader: Callable[..., tuple[DeltaSource, Catalog]], table: str, first_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta.time, "sleep", lambda _: pytest.fail("it waits"))

    with pytest.raises(ContractError, match="DELTA_SOURCE_MISSING"):
        reader(table)[0]._check(first_start=first_start)
