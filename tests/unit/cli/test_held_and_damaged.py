"""Commands for held tables, damaged tables and orphaned files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import operations, table_health
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import LeaseWatch
from deltaworks.control.records.held_tables import HeldTable, HeldTableRecords, HeldTables
from deltaworks.errors import ConfigError, ContractError
from tests.commands import invoke
from tests.unit.engine.hold_harness import Harness

run = partial(invoke, columns=300)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    harness = Harness.at(tmp_path)
    project = harness.catalog()
    for module in (operations, table_health):
        monkeypatch.setattr(module, "catalog", lambda: project)
    return harness


def suspend(harness: Harness) -> None:
    HeldTables(harness.objects, "shop").hold(
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
def test_tables_are_listed_with_held_commits(harness: Harness, words: list[str]) -> None:
    harness.land(harness.processor(), 0)
    suspend(harness)

    shown = run(*words)

    assert shown.exit_code == 0, shown.output
    assert "shop.clicks" in shown.output
    assert "held: shop.orders since batch 3 (suspended" in shown.output
    assert "level must be positive" in shown.output


def test_a_table_resume_is_requested_without_a_stream(harness: Harness) -> None:
    suspend(harness)

    shown = run("tables", "resume", "shop", "orders")

    assert shown.exit_code == 0, shown.output
    assert "catches up orders at its next start" in shown.output
    assert harness.objects.get(paths.resume_request("shop", "orders")) is not None
    harness.processor()
    assert PipelineHome(harness.objects, "shop").held.read() == {}


def test_a_table_that_is_not_suspended_is_rejected(harness: Harness) -> None:
    shown = run("tables", "resume", "shop", "orders")

    assert isinstance(shown.exception, ConfigError)
    assert shown.exception.condition == "TABLE_NOT_SUSPENDED"


def test_a_table_that_fails_again_reports_the_reason(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    suspend(harness)
    monkeypatch.setattr(LeaseWatch, "is_held", lambda self: True)
    monkeypatch.setattr(
        HeldTableRecords, "request_resume", lambda *_, **__: None
    )  # as if the stream had tried and failed

    shown = run("tables", "resume", "shop", "orders")

    assert isinstance(shown.exception, ContractError)
    assert shown.exception.condition == "ROWS_REFUSED"


def test_orphans_are_listed_and_deleted_only_on_request(harness: Harness) -> None:
    harness.land(harness.processor(), 0)

    shown = run("tables", "orphans", "shop")

    assert shown.exit_code == 0, shown.output
    assert "Nothing was removed" in shown.output


def test_a_damaged_checkpoint_is_named_and_retired_only_on_request(harness: Harness) -> None:

    PipelineHome(harness.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    harness.land(harness.processor(), 0)
    harness.objects.put(f"{paths.checkpoint('shop', 1, 1)}/offsets/0", b"")

    dry = run("checkpoint", "repair", "shop")
    done = run("checkpoint", "repair", "shop", "--no-dry-run")
    after = run("checkpoint", "repair", "shop")

    assert "offsets/0: it is empty" in dry.output
    assert "Nothing was changed" in dry.output
    assert "The checkpoint is retired" in done.output
    assert "No damage found" in after.output
