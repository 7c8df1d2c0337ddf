"""A ledger that was lost is recreated from the prepared batches, and a damaged checkpoint is retired."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.engine import recovery as run_start
from deltaworks.engine.ledger import Ledger
from deltaworks.engine.recovery import open_batch_processor
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.recovery.repair.checkpoint import repair_checkpoint
from deltaworks.specs.catalog import Catalog
from tests.unit.engine.hold_harness import TABLES, Harness


@pytest.fixture
def catalog(stage: Harness) -> Catalog:
    return stage.catalog()


def lose(stage: Harness, *names: str) -> None:
    for name in names:
        shutil.rmtree(stage.root / "lake" / paths.pipeline_control("shop", name))


def start(stage: Harness, catalog: Catalog) -> None:
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=3, name="shop")
    stage.epoch = lease.acquire(wait_seconds=5)
    try:
        open_batch_processor(None, catalog, stage.spec, stage.objects, lease=lease, epoch=stage.epoch)
    finally:
        lease.release()


def test_a_lost_ledger_is_refused_and_not_taken_for_a_new_pipeline(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    lose(stage, "checkpoint_store", "batch_metadata_store")

    with pytest.raises(ContractError, match="LEDGER_BEHIND"):
        start(stage, catalog)

    assert not (stage.root / "lake" / paths.pipeline_control("shop", "checkpoint_store")).exists()


def test_a_former_owner_that_completes_a_last_batch_meanwhile_is_no_lost_ledger(
    stage: Harness, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    read, looks = run_start.read_last_completed, []

    def late(*arguments: Any) -> int | None:
        looks.append(1)
        last = read(*arguments)
        return last - 2 if last is not None and len(looks) == 1 else last

    monkeypatch.setattr(run_start, "read_last_completed", late)

    start(stage, catalog)

    assert len(looks) == 2


@pytest.mark.parametrize("gone", [("checkpoint_store", "batch_metadata_store"), ("checkpoint_store",)])
@pytest.mark.parametrize("torn", [False, True])
def test_a_lost_ledger_is_made_anew_and_no_row_lands_twice(
    stage: Harness, catalog: Catalog, gone: tuple[str, ...], torn: bool
) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    if torn:
        stage.prepare(3)
    lose(stage, *gone)

    dry = repair_checkpoint(catalog, "shop")
    assert (dry.ledger_batches, dry.retired, dry.dry_run) == (3 + torn, False, True)
    done = repair_checkpoint(catalog, "shop", dry_run=False)
    start(stage, catalog)
    following = 3 + torn
    stage.land(stage.processor(), following)

    assert done.ledger_batches == 3 + torn
    for name in (*TABLES, "quarantine"):
        assert stage.landed(name) == stage.expected(*range(following + 1)), name
    ledger = Ledger(stage.lake, "shop", 1)
    assert ledger.last_completed() == following
    assert ledger.end_offset(1) == {"seq": 1}
    assert repair_checkpoint(catalog, "shop").ledger == ""


def test_a_ledger_begins_with_the_oldest_prepared_batch_that_is_left(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(4):
        stage.land(processor, batch_id)
    for batch_id in (0, 1):
        stage.objects.delete(paths.prepared_batch("shop", 1, batch_id))
    lose(stage, "checkpoint_store", "batch_metadata_store")

    repair_checkpoint(catalog, "shop", dry_run=False)

    stage.epoch += 5
    stage.land(stage.processor(), 4)
    assert Ledger(stage.lake, "shop", 1).last_completed() == 4
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3, 4)


def test_a_ledger_with_a_gap_behind_it_is_left_alone(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(4):
        stage.land(processor, batch_id)
    stage.objects.delete(paths.prepared_batch("shop", 1, 2))
    lose(stage, "checkpoint_store", "batch_metadata_store")

    with pytest.raises(ContractError, match="LEDGER_NOT_REBUILDABLE"):
        repair_checkpoint(catalog, "shop", dry_run=False)


def test_a_damaged_checkpoint_is_retired_only_when_told(stage: Harness, catalog: Catalog) -> None:

    PipelineHome(stage.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    stage.land(stage.processor(), 0)
    stage.objects.put(f"{paths.checkpoint('shop', 1, 1)}/metadata", b'{"id": "x"}')
    stage.objects.put(f"{paths.checkpoint('shop', 1, 1)}/offsets/0", b"")

    dry = repair_checkpoint(catalog, "shop")
    known = PipelineHome(stage.objects, "shop").generations.read()
    assert "offsets/0: it is empty" in dry.damaged[0]
    assert known is not None
    assert not known.current.retired

    assert repair_checkpoint(catalog, "shop", dry_run=False).retired
    renewed = PipelineHome(stage.objects, "shop").generations.current_checkpoint(
        last_completed=0, end_offset={"seq": 0}
    )
    assert (renewed.current.ordinal, renewed.current.first_batch, renewed.current.start) == (2, 1, {"seq": 0})


def test_nothing_is_repaired_beside_a_stream(stage: Harness, catalog: Catalog) -> None:
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=3, name="shop")
    lease.acquire(wait_seconds=1)

    with pytest.raises(ConcurrencyError, match="LEASE_HELD"):
        repair_checkpoint(catalog, "shop", dry_run=False)

    lease.release()


@pytest.mark.parametrize("damage", ["deleted", "torn"])
def test_a_lease_object_that_is_gone_does_not_begin_below_the_epoch_of_the_tables(
    stage: Harness, catalog: Catalog, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        stage.processor()
    key = paths.pipeline_control("shop", "lease.json")
    if damage == "torn":
        stage.objects.put(key, b'{"owner": "a", "epo')

    repair_checkpoint(catalog, "shop", dry_run=False)

    lease = Lease(stage.objects, key, ttl_seconds=3, name="shop")
    assert lease.acquire(wait_seconds=5) == 6
    lease.release()
