"""Positions of readers and writers that VACUUM respects, from ledgers, checkpoints, change feeds and registrations."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.generations import Generations, Rollback, StartOver, TableLoss
from deltaworks.engine.ledger import CHECKPOINT_STORE_SCHEMA
from deltaworks.errors import ConfigError
from deltaworks.maintenance import vacuum
from deltaworks.maintenance.vacuum import vacuum_tables
from deltaworks.maintenance.vacuum_holds import Hold, holds_on
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.changes import POSITION_KEY, ChangePosition
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import CHECKPOINT_STORE, batch_step
from deltaworks.testing import catalog_of, present
from tests.unit.engine.hold_harness import Harness
from tests.unit.maintenance.table_data import SHOP, project

TABLES = """\
tables: [{name: orders, catch_all: true}, {name: items, when: {name: item}}]
live: [{name: orders_live, reads: orders}]
"""
COPY = """\
pipeline: copy
description: a copy of orders
owner: tests
source: {kind: delta, pipeline: shop, table: orders}
event: {name: {path: event_name}, time: {path: event_time}}
tables: [{name: copied, catch_all: true}]
"""
KEY = paths.table("shop", "orders")
START = utc_now().replace(microsecond=0) - dt.timedelta(hours=100)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + TABLES, copy=COPY)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return Lake(catalog.environment.lake)


@pytest.fixture
def objects(lake: Lake) -> LocalObjects:
    return LocalObjects(Path(lake.storage.prefix))


def made_hourly(lake: Lake, key: str = KEY, *, commits: int = 5) -> DeltaTable:
    """A table with hourly commits."""
    made, schema = user_metadata(pipeline="shop", batch=0, operation="ingest"), pa.schema([("value", pa.int64())])
    table = lake.ensure(key, schema, user_metadata=made)
    for batch in range(1, commits):
        lake.append(table, key, pa.table({"value": [batch]}), step=Step("shop/1", batch), user_metadata=made)
    for version in range(commits):
        path = Path(lake.storage.prefix, key, "_delta_log", f"{version:020d}.json")
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int((START + dt.timedelta(hours=version)).timestamp() * 1000)
        path.write_text("\n".join(json.dumps(action) for action in actions))
    return present(lake.open(key))


@pytest.fixture
def found(catalog: Catalog, lake: Lake, objects: LocalObjects) -> Callable[[], list[Hold]]:
    made_hourly(lake)
    return lambda: holds_on(catalog, lake, PipelineHome(objects, "shop"), "orders")


def at(hours: int) -> dt.datetime:
    return START + dt.timedelta(hours=hours)


def offset(version: int, *, starting: bool = False) -> str:
    return json.dumps({"sourceVersion": 1, "reservoirVersion": version, "index": -1, "isStartingVersion": starting})


def checkpoint(objects: LocalObjects, folder: str, offsets: dict[int, str], *, done: int) -> None:
    for number, text in offsets.items():
        objects.put(f"{folder}/offsets/{number}", f"v1\n{{}}\n{text}".encode())
        if number < done:
            objects.put(f"{folder}/commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')


def completed(lake: Lake, batch_id: int, end: str) -> None:
    """A completed batch in the reader's ledger."""
    key = paths.pipeline_control("copy", CHECKPOINT_STORE)
    made = user_metadata(pipeline="copy", batch=batch_id, operation="complete_batch")
    table = lake.ensure(key, CHECKPOINT_STORE_SCHEMA, user_metadata=made)
    row = {"pipeline": "copy", "generation": 1, "batch_id": batch_id, "end_offset": end}
    rows = pa.Table.from_pylist([row], schema=CHECKPOINT_STORE_SCHEMA)
    lake.append(table, key, rows, step=batch_step("copy", 1, CHECKPOINT_STORE, batch_id), user_metadata=made)


def test_a_table_without_readers_has_no_holds(found: Callable[[], list[Hold]]) -> None:
    assert found() == []


def test_a_stream_holds_its_next_version(found: Callable[[], list[Hold]], lake: Lake) -> None:
    completed(lake, 0, offset(2))
    assert found() == [Hold(holder="the stream of copy", since=at(2))]

    completed(lake, 1, offset(4))
    assert found() == [Hold(holder="the stream of copy", since=at(4))]

    completed(lake, 2, offset(5))
    assert found() == []


def test_a_stream_in_its_first_batch_holds_the_snapshot_it_reads(
    found: Callable[[], list[Hold]], objects: LocalObjects
) -> None:
    objects.put(paths.pipeline_control("copy", "generations.json"), Generations.first().encode())
    checkpoint(objects, paths.checkpoint("copy", 1, 1), {0: offset(3, starting=True)}, done=0)

    assert found() == [Hold(holder="the stream of copy", since=at(3))]


def test_a_live_query_holds_its_next_version(found: Callable[[], list[Hold]], objects: LocalObjects) -> None:
    folder = paths.live_checkpoint("shop", 1, "orders_live")
    checkpoint(objects, folder, {0: offset(1), 1: offset(2), 2: offset(4)}, done=2)

    assert found() == [Hold(holder="the live table orders_live", since=at(2))]


@pytest.mark.parametrize(("through", "holds"), [("change_feed", True), ("notifications", False)])
def test_a_change_feed_reader_holds_versions_after_its_position(
    found: Callable[[], list[Hold]], lake: Lake, through: Any, holds: bool
) -> None:
    table = present(lake.open(KEY))
    position = ChangePosition(source=through, table_id=str(table.metadata().id), version=2)
    said = {POSITION_KEY: str(position)}
    made = user_metadata(pipeline="days", batch=1, operation="follow_changes", **said)
    lake.ensure(paths.reader("days"), pa.schema([("day", pa.date32())]), user_metadata=made)
    other = ChangePosition(source=through, table_id="another", version=0)
    of_other = user_metadata(pipeline="o", batch=1, operation="follow_changes", **{POSITION_KEY: str(other)})
    lake.ensure(paths.reader("of_another"), pa.schema([("day", pa.date32())]), user_metadata=of_other)

    assert found() == ([Hold(holder="the reader days", since=at(3))] if holds else [])


def test_a_registered_reader_holds_its_version_until_it_expires(
    found: Callable[[], list[Hold]], objects: LocalObjects
) -> None:
    said = PipelineHome(objects, "shop").readers.pin("orders", reader="training", version=1, hours=1)
    PipelineHome(objects, "shop").readers.pin("items", reader="other", version=0, hours=1)
    (hold,) = found()
    assert hold.since == at(1)
    assert "training" in hold.holder

    over = said.replace(until=(utc_now() - dt.timedelta(seconds=1)).isoformat())
    objects.put(paths.reader_record("shop", "orders", "training"), over.encode())
    assert found() == []

    objects.put(paths.reader_record("shop", "orders", "training"), b"{")
    with pytest.raises(ConfigError, match="READER_UNREADABLE"):
        found()


def test_an_interrupted_restore_holds_its_target_version(
    found: Callable[[], list[Hold]], objects: LocalObjects
) -> None:
    rollbacks = PipelineHome(objects, "shop").rollbacks
    begun = rollback(to_version=2)
    rollbacks.get_or_create(begun)
    assert found() == [Hold(holder="rollback 1 of the table", since=at(2))]

    rollbacks.record_completion(begun, version=5)
    assert found() == []


def test_an_interrupted_pipeline_rollback_holds_its_target_versions(
    found: Callable[[], list[Hold]], objects: LocalObjects
) -> None:
    abandoned = TableLoss(table="orders", version=4, rows=3, files=3, bytes=9, restore_to=1)
    begun = StartOver(
        pipeline="shop", generation=2, first_batch=5, start={"seq": 1}, to_batch=1, spec_fingerprint="f",
        code_version="1", tables=(abandoned,), by="somebody", reason="", run="manual", at=START.isoformat(),
    )  # fmt: skip
    PipelineHome(objects, "shop").start_overs.get_or_create(begun)
    assert found() == [Hold(holder="the rollback to generation 2", since=at(1))]

    PipelineHome(objects, "shop").start_overs.record_completion(begun)
    assert found() == []


def rollback(*, to_version: int) -> Rollback:
    return Rollback(
        pipeline="shop", ordinal=1, table="orders", generation=1, from_version=4, to_version=to_version,
        row_source="prepared", lost=(), undone_changes=(), dropped_files=(), by="somebody", reason="", run="manual",
        at=START.isoformat(), code_version="1",
    )  # fmt: skip


def turn(granted: dt.datetime, *, state: Any = "granted") -> bytes:
    return TurnRecord(
        table="orders", turn="t", reason="write_turn", state=state, by="m", run="shop__mutations/r/mutate/1", renewal=1,
        ttl_seconds=20, max_turn_seconds=600, requested_at=granted.isoformat(), granted_at=granted.isoformat(),
    ).encode()  # fmt: skip


def test_a_write_turn_holds_the_version_at_its_grant(found: Callable[[], list[Hold]], objects: LocalObjects) -> None:
    granted = utc_now() - dt.timedelta(minutes=50)
    objects.put(paths.turn_request("shop", "orders"), turn(granted))
    assert found() == [Hold(holder="the write turn of shop__mutations/r/mutate/1", since=granted)]

    objects.put(paths.turn_request("shop", "orders"), turn(granted, state="released"))
    assert found() == []

    # An expired write turn no longer holds files.
    objects.put(paths.turn_request("shop", "orders"), turn(utc_now() - dt.timedelta(hours=3)))
    assert found() == []


def test_a_reader_at_a_lost_version_holds_without_a_time(
    found: Callable[[], list[Hold]], lake: Lake, objects: LocalObjects
) -> None:
    PipelineHome(objects, "shop").readers.pin("orders", reader="late", version=1, hours=1)
    table = present(lake.open(KEY))
    table.create_checkpoint()
    for version in (0, 1):
        Path(lake.storage.prefix, KEY, "_delta_log", f"{version:020d}.json").unlink()

    assert [hold.since for hold in found()] == [None]


@pytest.mark.parametrize("info", [None, {}, {"timestamp": None}, {"timestamp": 0}])
def test_a_reader_at_a_version_that_records_no_time_holds_without_a_time(
    found: Callable[[], list[Hold]], lake: Lake, objects: LocalObjects, info: dict[str, Any] | None
) -> None:
    PipelineHome(objects, "shop").readers.pin("orders", reader="late", version=1, hours=1)
    path = Path(lake.storage.prefix, KEY, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    others = [action for action in actions if "commitInfo" not in action]
    path.write_text("\n".join(json.dumps(action) for action in ({"commitInfo": info}, *others)))

    # The storage may have received the commit later, so this is no time up to which files can go.
    assert [hold.since for hold in found()] == [None]


WEEKS = 40 * 86_400


@pytest.fixture
def old_catalog(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> Catalog:
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
    stage: Harness, old_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    hold_for_weeks(stage)
    if not protected:
        monkeypatch.setattr(vacuum, "uncommitted_files", lambda *_: {})

    (result,) = vacuum_tables(None, old_catalog, "shop", dry_run=False, tables=["orders"])
    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    processor = stage.processor()

    assert ("uncommitted files" in result.reason) is protected
    assert (result.files == 0) is protected
    if protected:
        assert stage.landed("orders") == stage.expected(0, 1, 2)
    else:
        assert [held.table for held in processor.held] == ["orders"], "its files are gone"


def test_other_tables_are_vacuumed(stage: Harness, old_catalog: Catalog) -> None:
    hold_for_weeks(stage)

    results = {result.table: result for result in vacuum_tables(None, old_catalog, "shop", tables=["orders", "clicks"])}

    assert (results["clicks"].mode, results["clicks"].reason) == ("full", "FULL: no FULL run yet")
    assert results["orders"].reason.startswith("skipped")
