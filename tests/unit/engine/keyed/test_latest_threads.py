"""Keyed and latest-rows tables during a stream: merged in a thread, suspended, and held for write turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.engine.keyed import catchup_threads as keyed_tables
from deltaworks.engine.keyed.catchup_threads import KeyedCatchUp, KeyedTables, _CatchUpThread
from deltaworks.engine.keyed.keyed_catchup import CatchUpResult, KeyedTableCatchUp
from deltaworks.errors import ConfigError, ContractError
from deltaworks.lineage.datasets import stream_outputs
from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.orphans import remove_orphans
from deltaworks.maintenance.table_health.catalog_tables import all_tables
from deltaworks.maintenance.vacuum import _select_tables
from deltaworks.recovery.repair.log_gap import check_pipeline
from deltaworks.recovery.restore.dependents import reject_mutable
from deltaworks.recovery.restore.plan import declared_tables
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.query import connect
from deltaworks.testing import catalog_of, table_rows
from tests.unit.engine.batch_records import asked_turn
from tests.unit.engine.hold_harness import Harness, declared
from tests.unit.engine.keyed.keyed_harness import LATEST as KEYED
from tests.unit.engine.keyed.keyed_harness import KeyedHarness
from tests.unit.engine.keyed.keyed_harness import declared as keyed_declared
from tests.unit.engine.keyed.latest_harness import NOW, LatestHarness, priced
from tests.waiting import eventually

LIVE, LATEST = "orders_now", "latest_orders"


def live_stage(root: Path, trigger_seconds: float = 5) -> Harness:
    mapping = declared()
    newest = {"name": LIVE, "reads": "orders", "kind": "latest", "key": ["level"], "keep": ["_batch_id"]}
    mapping["live"] = [{**newest, "expire_after_minutes": 60, "trigger_seconds": trigger_seconds}]
    return Harness(root, PipelineSpec.model_validate(mapping))


def keyed_stage(root: Path) -> Harness:
    mapping = declared()
    mapping["tables"][1]["keyed"] = {"by": ["level"], "newest_by": ["_batch_id"]}
    return Harness(root, PipelineSpec.model_validate(mapping))


def merged(harness: Harness, table: str = LIVE) -> list[tuple[Any, Any]]:
    """Key and position of each row."""
    return [(row["level"], row["_seq"]) for row in table_rows(harness.lake, "shop", table)]


def symbols(harness: KeyedHarness, table: str) -> list[Any]:
    """The symbols in a table."""
    return [row["symbol"] for row in table_rows(harness.lake, "market", table, "symbol")]


def test_a_batch_is_merged_immediately_once_the_trigger_interval_has_passed(tmp_path: Path) -> None:
    harness = live_stage(tmp_path, trigger_seconds=0.1)
    processor = harness.processor()
    processor.keyed.start()
    for batch in range(2):
        harness.land(processor, batch)
        eventually(lambda batch=batch: merged(harness) == [(7, batch)], f"batch {batch} is merged")
    processor.keyed.close(wait_seconds=None)

    assert not processor.keyed.is_running


def test_pending_rows_are_merged_when_the_run_ends(tmp_path: Path) -> None:
    harness = live_stage(tmp_path, trigger_seconds=600)
    processor = harness.processor()
    processor.keyed.start()
    harness.land(processor, 0)
    eventually(lambda: merged(harness) == [(7, 0)], "the first batch is merged")
    harness.land(processor, 1)
    time.sleep(0.3)
    assert merged(harness) == [(7, 0)], "the trigger has not passed"

    processor.keyed.close(wait_seconds=None)
    assert merged(harness) == [(7, 1)]


def test_merges_respect_the_trigger_interval_and_checks_run_without_batches() -> None:
    looks: list[float] = []

    def follow(name: str) -> Any:
        looks.append(time.monotonic())
        return CatchUpResult(table=name, mode="newer", history_version=1, rows=1, merges=1, engine="", seconds=0.0)

    thread = _CatchUpThread("live tables", {"now": 0.2}, follow)
    thread.start()
    for _ in range(12):
        thread.wake()
        time.sleep(0.05)
    eventually(lambda: len(looks) >= 5, "it looks without being woken")
    thread.close()
    thread.join()

    pauses = [after - before for before, after in pairwise(looks[:-1])]
    assert min(pauses) >= 0.19


def test_a_larger_merge_delays_no_live_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = keyed_declared().model_dump(mode="json", exclude_unset=True)
    newest = {"name": NOW, "reads": "ticks", "kind": "latest", "key": ["symbol"], "expire_after_minutes": 30}
    mapping["live"] = [{**newest, "trigger_seconds": 0.1}]
    harness = KeyedHarness(tmp_path, PipelineSpec.model_validate(mapping))
    harness.append([priced("a", 0)])
    released, original = threading.Event(), KeyedTableCatchUp.catch_up

    def slowly(self: KeyedTableCatchUp) -> Any:
        if self._table.name == KEYED:
            released.wait(30)
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "catch_up", slowly)
    follower = KeyedCatchUp(harness.tables(), is_held=lambda table: False)
    follower.start()
    try:
        eventually(lambda: bool(symbols(harness, NOW)), "the live table is there")
        assert symbols(harness, KEYED) == []
    finally:
        released.set()
        follower.close(wait_seconds=None)
    assert symbols(harness, KEYED) == ["a"]


@pytest.fixture
def latest(tmp_path: Path) -> LatestHarness:
    harness = LatestHarness(tmp_path)
    harness.append([priced("a", 0), priced("b", 1)])
    harness.follow()
    return harness


@pytest.fixture
def catalog(latest: LatestHarness) -> Catalog:
    return catalog_of(latest.root, latest.spec, lake=latest.lake.storage)


def test_maintenance_handles_it_without_a_window_date(latest: LatestHarness, catalog: Catalog) -> None:
    optimized = optimized_tables(latest.spec)[NOW]
    assert optimized.needs_write_turn
    assert not optimized.only_closed
    assert read_layout(latest.lake, "market", optimized).partition_by == ()
    assert NOW in _select_tables(latest.spec, None)
    assert NOW in {result.target for result in remove_orphans(catalog, "market", dry_run=True)}
    (table,) = (table for table in all_tables(latest.lake, catalog) if table.name == NOW)
    assert (table.kind, table.error) == ("live", "")


def test_it_follows_bronze_and_is_neither_restored_nor_recreated_separately(
    latest: LatestHarness, catalog: Catalog
) -> None:
    assert NOW not in declared_tables(latest.spec)
    with pytest.raises(ConfigError, match="Keyed, gold and live tables follow"):
        reject_mutable(latest.spec, NOW)
    next((latest.root / paths.table("market", NOW)).glob("*.parquet")).unlink()
    (damage,) = check_pipeline(catalog, "market", table=NOW)
    assert "which rebuilds it from 'ticks'" in damage.repair


def test_sql_and_lineage_show_it(latest: LatestHarness, catalog: Catalog) -> None:
    connection, _ = connect(catalog, statement=f"SELECT * FROM market.{NOW}")
    assert connection.sql(f"SELECT count(*) FROM market.{NOW}").fetchall() == [(2,)]

    (dataset,) = (dataset for dataset in stream_outputs(catalog, latest.spec) if dataset.name.endswith(NOW))
    assert [column.name for column in dataset.columns["price"]] == ["price"]


def test_only_its_own_tables_are_merged(latest: LatestHarness) -> None:
    tables: KeyedTables = latest.tables()

    assert tables.names == (NOW,)
    assert tables.trigger_seconds == {NOW: 5}
    assert tables.is_idle(NOW)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return keyed_stage(tmp_path)


def ask(harness: Harness, record: TurnRecord) -> None:
    harness.objects.put(paths.turn_request("shop", record.table), record.encode())


def turn_state(harness: Harness, table: str = LATEST) -> str:
    stored = harness.objects.get(paths.turn_request("shop", table))
    record = TurnRecord.decode_or_none(stored.data) if stored else None
    return record.state if record else ""


def test_every_batch_wakes_the_thread_that_merges(harness: Harness) -> None:
    processor = harness.processor()
    processor.keyed.start()
    harness.land(processor, 0)
    eventually(lambda: merged(harness, LATEST) == [(7, 0)], "the first batch is merged")
    harness.land(processor, 1)
    eventually(lambda: merged(harness, LATEST) == [(7, 1)], "the second batch is merged")
    harness.land(processor, 2)
    processor.keyed.close(wait_seconds=None)

    assert merged(harness, LATEST) == [(7, 2)]


def test_a_batch_that_was_not_merged_is_merged_by_the_next_owner(harness: Harness) -> None:
    harness.land(harness.processor(), 0)
    assert merged(harness, LATEST) == []

    harness.processor().keyed.catch_up_all()
    assert merged(harness, LATEST) == [(7, 0)]


@pytest.mark.parametrize("point", ["committed:orders", f"merging:{LATEST}", f"merged:{LATEST}"])
def test_a_process_killed_between_history_and_keyed_table_loses_no_key(harness: Harness, point: str) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    processor.keyed.catch_up_all()
    killed = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.keyed.killed_process", str(harness.root), point],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include")},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert merged(harness, LATEST) == [(7, 1 if point.startswith("merged") else 0)]

    harness.epoch = 2
    successor = harness.processor()
    successor.complete_prepared()
    successor.keyed.catch_up_all()
    assert merged(harness, LATEST) == [(7, 1)]
    assert harness.landed("orders") == harness.expected(0, 1)


@pytest.mark.parametrize(("stage", "table"), [(live_stage, LIVE), (keyed_stage, LATEST)])
def test_a_table_that_cannot_be_merged_is_suspended_and_continues_once_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Callable[[Path], Harness], table: str
) -> None:
    harness = stage(tmp_path)
    processor = harness.processor()
    harness.land(processor, 0)

    def fails(self: KeyedTableCatchUp) -> None:
        raise ContractError("TABLE_SCHEMA_DIFFERS", "another type")

    with monkeypatch.context() as patched:
        patched.setattr(KeyedTableCatchUp, "catch_up", fails)
        processor.keyed.catch_up_all()
    assert harness.land(processor, 1) is not None, "no batch waits for it"
    (held,) = processor.held
    assert (held.table, held.reason, held.condition) == (table, "suspended", "TABLE_SCHEMA_DIFFERS")
    assert harness.landed("orders") == harness.expected(0, 1)
    assert processor.keyed.catch_up_all() == []

    PipelineHome(harness.objects, "shop").held.request_resume(table, by="ada")
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert processor.held == []
    assert merged(harness, table) == [(7, 1)]


def test_a_retryable_failure_is_retried_immediately(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    monkeypatch.setattr(keyed_tables, "RETRY_SECONDS", (0.0, 0.0))
    original, failures = KeyedTableCatchUp.catch_up, [OSError("away"), OSError("away")]

    def fails_twice(self: KeyedTableCatchUp) -> Any:
        if failures:
            raise failures.pop()
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "catch_up", fails_twice)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert processor.held == []
    assert merged(harness, LATEST) == [(7, 0)]


@pytest.mark.parametrize(("stage", "table"), [(live_stage, LIVE), (keyed_stage, LATEST)])
def test_a_job_has_the_table_for_itself_while_it_has_the_turn(
    tmp_path: Path, stage: Callable[[Path], Harness], table: str
) -> None:
    harness = stage(tmp_path)
    processor = harness.processor()
    harness.land(processor, 0)
    processor.keyed.catch_up_all()
    ask(harness, asked_turn(table))
    harness.land(processor, 1)
    assert turn_state(harness, table) == "granted"
    assert processor.keyed.catch_up_all() == []
    assert merged(harness, table) == [(7, 0)]

    ask(harness, asked_turn(table).replace(state="released"))
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert merged(harness, table) == [(7, 1)]


def test_a_turn_is_granted_after_the_running_merge(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    original, states = KeyedTableCatchUp.catch_up, []

    def merging(self: KeyedTableCatchUp) -> Any:
        ask(harness, asked_turn(LATEST))
        processor.serve_requests()
        states.append(turn_state(harness))
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "catch_up", merging)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert [*states, turn_state(harness)] == ["requested", "granted"]
    assert merged(harness, LATEST) == [(7, 0)]


def test_a_stream_without_keyed_tables_starts_no_thread(tmp_path: Path) -> None:
    harness = Harness.at(tmp_path)
    processor = harness.processor()
    processor.keyed.start()
    harness.land(processor, 0)

    assert processor.keyed.catch_up_all() == []
    assert not processor.keyed.is_running
    processor.keyed.close(wait_seconds=None)
