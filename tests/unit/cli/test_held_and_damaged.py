"""Commands for held tables, damaged tables and orphaned files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deltaworks.cli import app, operations, table_health
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import LeaseWatch
from deltaworks.control.records.held_tables import HeldTable, HeldTableRecords, HeldTables
from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from tests.unit.engine.hold_harness import Harness


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    stage = Harness.at(tmp_path)
    environment = EnvironmentSpec(
        environment="tests",
        lake=stage.storage,
        landing=StorageSpec(root=f"file://{tmp_path}/landing"),
        messaging=AwsSpec(),
    )
    fast = stage.spec.model_copy(update={"stream": stage.spec.stream.model_copy(update={"lease_ttl_seconds": 3})})
    project = Catalog(environment=environment, relays={}, pipelines={"shop": fast}, root=tmp_path)
    for module in (operations, table_health):
        monkeypatch.setattr(module, "catalog", lambda: project)
    return stage


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "300"})


def suspend(stage: Harness) -> None:
    HeldTables(stage.objects, "shop").hold(
        HeldTable(
            table="orders",
            reason="suspended",
            since_batch=3,
            at="2026-01-01T00:00:00+00:00",
            condition="ROWS_REFUSED",
            message="level must be positive",
            by="the stream",
        )
    )


@pytest.mark.parametrize("words", [["tables"], ["tables", "shop"], ["tables", "list", "shop"], ["tables", "--control"]])
def test_tables_are_listed_with_held_commits(stage: Harness, words: list[str]) -> None:
    stage.land(stage.processor(), 0)
    suspend(stage)

    shown = run(*words)

    assert shown.exit_code == 0, shown.output
    assert "shop.clicks" in shown.output
    assert "held: shop.orders since batch 3 (suspended" in shown.output
    assert "level must be positive" in shown.output


def test_a_table_resume_is_requested_without_a_stream(stage: Harness) -> None:
    suspend(stage)

    shown = run("tables", "resume", "shop", "orders")

    assert shown.exit_code == 0, shown.output
    assert "its next start catches orders up" in shown.output
    assert stage.objects.get(paths.resume_request("shop", "orders")) is not None
    stage.processor()
    assert PipelineHome(stage.objects, "shop").held.read() == {}


def test_a_table_that_is_not_suspended_is_rejected(stage: Harness) -> None:
    shown = run("tables", "resume", "shop", "orders")

    assert isinstance(shown.exception, ConfigError)
    assert shown.exception.condition == "TABLE_NOT_SUSPENDED"


def test_a_table_that_fails_again_reports_the_reason(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    suspend(stage)
    monkeypatch.setattr(LeaseWatch, "is_held", lambda self: True)
    monkeypatch.setattr(
        HeldTableRecords, "request_resume", lambda *_, **__: None
    )  # as if the stream had tried and failed

    shown = run("tables", "resume", "shop", "orders")

    assert isinstance(shown.exception, ContractError)
    assert shown.exception.condition == "ROWS_REFUSED"


def test_orphans_are_listed_and_deleted_only_on_request(stage: Harness) -> None:
    stage.land(stage.processor(), 0)

    shown = run("tables", "orphans", "shop")

    assert shown.exit_code == 0, shown.output
    assert "Nothing was removed" in shown.output


def test_a_damaged_checkpoint_is_named_and_retired_only_on_request(stage: Harness) -> None:

    PipelineHome(stage.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    stage.land(stage.processor(), 0)
    stage.objects.put(f"{paths.checkpoint('shop', 1, 1)}/offsets/0", b"")

    dry = run("checkpoint", "repair", "shop")
    done = run("checkpoint", "repair", "shop", "--no-dry-run")
    after = run("checkpoint", "repair", "shop")

    assert "offsets/0: it is empty" in dry.output
    assert "Nothing was changed" in dry.output
    assert "The checkpoint is retired" in done.output
    assert "Nothing is wrong" in after.output
