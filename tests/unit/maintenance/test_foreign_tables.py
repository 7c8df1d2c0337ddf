"""Tables that another engine changed, beside others: nothing is concluded from what cannot be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.maintenance.layout import select_tables
from deltaworks.maintenance.optimize_night import read_policy, select_partitions
from deltaworks.maintenance.orphans import OrphanResult, remove_orphans
from deltaworks.maintenance.table_health.report import report_tables
from deltaworks.maintenance.vacuum import vacuum_tables
from deltaworks.recovery.repair.log_gap import check_pipeline, repair_log
from deltaworks.recovery.repair.lost_files import repair_files, repair_table
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.query import connect
from deltaworks.tables.spark_catalog import registration
from tests.unit.recovery.restore.source_harness import SourceHarness
from tests.unit.tables.log_model import convert_to_adaptive_metadata, convert_to_version_2

ORDERS = paths.table("shop", "orders")
UNSUPPORTED = r"TABLE_FEATURE_UNSUPPORTED.*adaptiveMetadata"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceHarness:
    harness = SourceHarness.at(tmp_path)
    assert isinstance(harness, SourceHarness)
    harness.land_all(0, 1, 2)
    for module in ("sql", "tables", "table_health"):
        monkeypatch.setattr(f"deltaworks.cli.{module}.catalog", lambda **options: harness.catalog())
    return harness


@pytest.fixture
def catalog(stage: SourceHarness) -> Catalog:
    """The pipeline with the table `orders` in the coming layout; all files are old."""
    convert_to_adaptive_metadata(stage.lake, ORDERS)
    age_files(stage)
    return stage.catalog()


def age_files(stage: SourceHarness) -> None:
    then = time.time() - 100 * 86_400
    for path in stage.root.rglob("*.parquet"):
        os.utime(path, (then, then))


def files(stage: SourceHarness) -> list[tuple[str, int]]:
    folder = stage.root / "lake" / ORDERS
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file())


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "400"})
    assert done.exit_code in (0, 11), done.output
    return done.output


def test_a_table_in_an_unknown_layout_is_one_line_of_each_listing(stage: SourceHarness, catalog: Catalog) -> None:
    before = files(stage)

    for words in (("sql",), ("tables",), ("tables", "check"), ("tables", "readers", "shop")):
        lines = run(*words).splitlines()
        assert sum("adaptiveMetadata" in line for line in lines) == 1, words
    (damage,) = check_pipeline(catalog, "shop")
    assert (damage.subject, damage.kind) == ("orders", "unreadable")
    assert "recover" not in damage.repair
    assert "move" not in damage.repair
    (report,) = (one for one in report_tables(catalog, pipeline="shop", now=utc_now()) if one.error)
    assert "adaptiveMetadata" in report.error
    registered = registration(catalog)
    assert "adaptiveMetadata" in registered.excluded["shop.orders"]
    assert any("quarantine" in statement for statement in registered.script)
    assert files(stage) == before


def test_queries_of_other_tables_are_answered(stage: SourceHarness, catalog: Catalog) -> None:
    connection, names = connect(catalog)

    assert "shop.orders" in names
    assert connection.sql("SELECT count(*) FROM shop.quarantine").fetchall() == [(2,)]
    with pytest.raises(duckdb.Error, match="adaptiveMetadata"):
        connection.sql("SELECT * FROM shop.orders").fetchall()
    assert run("sql", "SELECT count(*) AS orders FROM shop.quarantine").split()[-1] == "2"
    failed = CliRunner().invoke(app, ["sql", "SELECT * FROM shop.orders"])
    assert isinstance(failed.exception, DeltaworksError)
    assert "adaptiveMetadata" in failed.exception.message


def test_nothing_of_a_table_in_an_unknown_layout_is_deleted(stage: SourceHarness, catalog: Catalog) -> None:
    before = files(stage)

    vacuumed = vacuum_tables(None, catalog, "shop", dry_run=False, retention_hours=168)
    removed = remove_orphans(catalog, "shop", dry_run=False)
    chosen = select_partitions(
        stage.lake, catalog.pipeline("shop"), policy=read_policy(catalog.pipeline("shop")), now=utc_now()
    )

    reasons_by_run = (
        {result.table: result.reason for result in vacuumed},
        {result.target: result.reason for result in removed if isinstance(result, OrphanResult)},
        {choice.table: choice.reason for choice in chosen},
    )
    for reasons in reasons_by_run:
        assert "adaptiveMetadata" in reasons.pop("orders")
        assert reasons
        assert not any("adaptiveMetadata" in reason for reason in reasons.values())
    assert {choice.table for choice in chosen} == set(select_tables(catalog.pipeline("shop"), None))
    assert files(stage) == before


def test_no_recovery_touches_a_table_in_an_unknown_layout(stage: SourceHarness, catalog: Catalog) -> None:
    before = files(stage)

    for dry_run in (True, False):
        with pytest.raises(ContractError, match=UNSUPPORTED):
            repair_log(catalog, "shop", "orders", dry_run=dry_run, max_rows=99)
        with pytest.raises(ContractError, match=UNSUPPORTED):
            repair_files(catalog, "shop", "orders", dry_run=dry_run, max_rows=99)
        with pytest.raises(DeltaworksError):
            repair_table(catalog, "shop", "orders", dry_run=dry_run)
    with pytest.raises(ContractError, match=UNSUPPORTED):
        TableRestore(catalog, "shop", "orders").run(TableRestoreRequest(point=RestorePoint(version=1), max_rows=99))
    with pytest.raises(ContractError, match=UNSUPPORTED):
        start_over(catalog, "shop", max_rows=99, dry_run=False)

    assert files(stage) == before


def test_a_healthy_table_with_checkpoints_of_version_2_is_read_everywhere(stage: SourceHarness) -> None:
    landed = stage.landed("orders")
    convert_to_version_2(stage.lake, ORDERS)
    catalog, before = stage.catalog(), files(stage)

    assert check_pipeline(catalog, "shop") == []
    assert repair_log(catalog, "shop", "orders").recreated == {}
    assert not repair_files(catalog, "shop", "orders").files
    assert "No damage found" in run("tables", "check", "shop")
    assert run("sql", "SELECT count(*) AS orders FROM shop.orders").split()[-1] == str(len(landed))
    assert stage.landed("orders") == landed
    assert files(stage) == before


def test_the_hint_for_a_lost_log_destroys_nothing(stage: SourceHarness) -> None:
    log = stage.root / "lake" / ORDERS / "_delta_log"
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()

    with pytest.raises(ContractError, match="TABLE_LOG_LOST") as caught:
        repair_log(stage.catalog(), "shop", "orders")

    assert "move the table's folder away" in caught.value.hint
    assert "remove" not in caught.value.hint
