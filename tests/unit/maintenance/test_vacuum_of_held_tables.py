"""VACUUM deletes no uncommitted file, however old."""

from __future__ import annotations

import datetime as dt
import os
import time

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.maintenance import vacuum
from deltaworks.maintenance.vacuum import vacuum_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.testing import catalog_of
from tests.unit.engine.hold_harness import Harness

WEEKS = 40 * 86_400


@pytest.fixture
def catalog(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    # New tables are skipped; these are weeks old.
    monkeypatch.setattr(vacuum.time, "time", lambda later=time.time: later() + WEEKS)
    return catalog_of(stage.root, stage.spec, lake=stage.storage)


def hold_for_weeks(stage: Harness) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    mend = stage.break_table("orders")
    for batch_id in (1, 2):
        stage.land(processor, batch_id)
    mend()
    then = dt.datetime.now(tz=dt.UTC).timestamp() - WEEKS
    for path in (stage.root / "lake" / paths.table("shop", "orders")).rglob("*.parquet"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("protected", [True, False])
def test_uncommitted_files_are_not_deleted(
    stage: Harness, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    hold_for_weeks(stage)
    if not protected:
        monkeypatch.setattr(vacuum, "uncommitted_files", lambda *_: {})

    (result,) = vacuum_tables(None, catalog, "shop", dry_run=False, tables=["orders"])
    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    processor = stage.processor()

    assert ("uncommitted files" in result.reason) is protected
    assert (result.files == 0) is protected
    if protected:
        assert stage.landed("orders") == stage.expected(0, 1, 2)
    else:
        assert [held.table for held in processor.held] == ["orders"], "its files are gone"


def test_other_tables_are_vacuumed(stage: Harness, catalog: Catalog) -> None:
    hold_for_weeks(stage)

    results = {result.table: result for result in vacuum_tables(None, catalog, "shop", tables=["orders", "clicks"])}

    assert (results["clicks"].mode, results["clicks"].reason) == ("full", "FULL: no FULL run yet")
    assert results["orders"].reason.startswith("skipped")
