"""All tables of a pipeline go back to one batch without losing a row, and its source is read on in a new generation."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.table_set import TableSet
from deltaworks.engine.writers import FanOutWriter
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, FencedError
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.rollback_strategy import choose_strategy
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.recovery.start_over import StartOverResult, start_over
from deltaworks.sources.delta import check_not_rolled_back
from deltaworks.sources.record_source import RecordRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.unit.engine.hold_harness import TABLES, Harness, declared

ALL = (*TABLES, "quarantine")


@pytest.fixture
def stage(landed_stage: Harness, tmp_path: Path) -> Harness:
    """Four batches that have landed."""
    return landed_stage.copied_to(tmp_path)


@pytest.fixture(scope="module")
def landed_stage(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    made = Harness.at(tmp_path_factory.mktemp("landed"))
    processor = made.processor()
    PipelineHome(made.objects, "shop").specs.record_start(made.catalog().pipeline("shop"), owner_epoch=made.epoch)
    PipelineHome(made.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    for batch_id in range(4):
        made.land(processor, batch_id)
    return made


def back(stage: Harness, batch: int, fault: str = "none", **options: Any) -> StartOverResult:
    given = {"dry_run": False, "max_rows": 1_000, "restore_point": RestorePoint(batch=batch)} | options
    return start_over(stage.catalog(), "shop", fault=crash_at(fault), **given)


def versions(stage: Harness) -> dict[str, int]:
    tables = {name: stage.lake.open(paths.table("shop", name)) for name in ALL}
    return {name: table.version() for name, table in tables.items() if table is not None}


def land_again(stage: Harness, *seqs: int, generation: int = 2, first: int = 4) -> None:
    lease = Lease(
        stage.objects,
        paths.pipeline_control("shop", "lease.json"),
        ttl_seconds=3,
        name="shop",
        known_epoch=lambda: stage.epoch,
    )
    stage.epoch = lease.acquire(wait_seconds=5)
    try:
        processor = stage.processor(generation=generation, takeover=False)
        for number, seq in enumerate(seqs):
            stage.land(processor, first + number, seq=seq, generation=generation)
    finally:
        lease.release()


def test_a_dry_run_counts_what_goes_and_changes_nothing(stage: Harness) -> None:
    counted = back(stage, 1, dry_run=True)

    assert (counted.generation, counted.first_batch, counted.start) == (2, 4, {"seq": 1})
    assert {each.table: each.rows for each in counted.tables} == dict.fromkeys(ALL, 4)
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)


def test_all_tables_go_back_to_one_batch_and_what_comes_again_lands_once(stage: Harness) -> None:
    done = back(stage, 1)
    assert all(stage.landed(name) == stage.expected(0, 1) for name in ALL)
    known = PipelineHome(stage.objects, "shop").generations.effective()
    assert (known.generation, known.current.first_batch, known.current.start) == (2, 4, {"seq": 1})

    land_again(stage, 2, 3, 4)

    assert done.recreated == 4
    assert all(stage.landed(name) == stage.expected(0, 1, 2, 3, 4) for name in ALL)
    assert Ledger(stage.lake, "shop", 2).last_completed() == 6


def test_in_the_former_generation_what_comes_again_would_be_taken_for_landed(stage: Harness) -> None:
    back(stage, 1)

    # The same batch under its former step, as a stream lands it whose generation is set back.
    tables = TableSet(stage.lake, stage.spec)
    tables.open()
    batch = present(PipelineHome(stage.objects, "shop").prepared.read(1, 2))
    share = next(each for each in batch.tables if each.table == "orders")
    outcome = FanOutWriter(tables.handles).commit(batch, share, owner=owner_step("shop", stage.epoch + 9))

    assert outcome.outcome == "already_committed"
    assert stage.landed("orders") == stage.expected(0, 1)


@pytest.mark.parametrize(
    "point", ["planned", "recreated:quarantine", "replays", "recreated:orders", "ledger", "spec", "begun"]
)
def test_broken_off_anywhere_it_is_gone_on_with(stage: Harness, point: str) -> None:
    with pytest.raises(Crash):
        back(stage, 1, point)

    done = start_over(stage.catalog(), "shop", dry_run=False)
    land_again(stage, 2, 3)

    assert done.resumed
    assert all(stage.landed(name) == stage.expected(0, 1, 2, 3) for name in ALL)
    assert len(PipelineHome(stage.objects, "shop").start_overs.rollback_versions("orders")) == 1


def test_a_time_means_the_last_batch_that_was_complete_by_then(stage: Harness) -> None:
    history = BatchHistory(stage.lake, stage.objects, stage.spec)
    completed_at = history.detail(2).summary.completed_at
    assert completed_at is not None

    counted = back(stage, 0, dry_run=True, restore_point=RestorePoint(time=completed_at))

    assert {each.rows for each in counted.tables} == {2}
    with pytest.raises(ConfigError, match="BATCH_UNKNOWN"):
        back(stage, 0, restore_point=RestorePoint(time=completed_at - dt.timedelta(days=1)))
    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        back(stage, 0, restore_point=RestorePoint(version=1))


def test_what_stays_can_be_read_again_and_what_went_cannot_be_gone_back_to(stage: Harness) -> None:
    garbage = present(stage.lake.open(paths.table("shop", "orders"))).version()
    back(stage, 1)
    land_again(stage, 2)

    history = BatchHistory(stage.lake, stage.objects, stage.spec)
    one = TableRestore(stage.catalog(), "shop", "orders")

    assert [(each.generation, each.batch_id) for each in history.completed()] == [(1, 0), (1, 1), (2, 4)]
    with pytest.raises(ContractError, match="RESTORE_GENERATION_ENDED"):
        back(stage, 3)
    with pytest.raises(ContractError, match="RESTORE_GENERATION_ENDED"):
        one.count(TableRestoreRequest(point=RestorePoint(version=garbage)))
    again = one.run(TableRestoreRequest(point=RestorePoint(batch=0), max_rows=100))
    assert [(each.generation, each.number) for each in again.lost] == [(1, 1), (2, 4)]
    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_one_table_goes_back_within_the_new_generation(stage: Harness) -> None:
    back(stage, 1)
    land_again(stage, 2, 3)
    table = present(stage.lake.open(paths.table("shop", "orders")))
    table.delete("_seq >= 0")

    asked = TableRestoreRequest(point=RestorePoint(batch=4), max_rows=100)
    done = TableRestore(stage.catalog(), "shop", "orders").run(asked)

    assert [(each.generation, each.number) for each in done.lost] == [(2, 5)]
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)


def test_a_second_rollback_goes_behind_the_first(stage: Harness) -> None:
    back(stage, 2)
    land_again(stage, 3)

    back(stage, 0)
    land_again(stage, 1, 2, 3, generation=3, first=5)

    assert all(stage.landed(name) == stage.expected(0, 1, 2, 3) for name in ALL)
    history = BatchHistory(stage.lake, stage.objects, stage.spec)
    assert [(each.generation, each.batch_id) for each in history.completed()] == [(1, 0), (3, 5), (3, 6), (3, 7)]


def test_files_that_are_gone_keep_all_tables_as_they_are(stage: Harness) -> None:
    table = present(stage.lake.open(paths.table("shop", "logins")))
    table.optimize.compact()
    table = present(stage.lake.open(paths.table("shop", "logins")))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    before = versions(stage)

    with pytest.raises(ContractError, match="ROLLBACK_LOSES_ROWS"):
        back(stage, 1)

    assert versions(stage) == before, "what is refused has not even fenced a table"
    assert all(stage.landed(name) == stage.expected(0, 1, 2, 3) for name in ALL)


def test_a_stream_that_runs_and_a_bound_that_is_missing_stop_it(stage: Harness) -> None:
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=3, name="shop")
    lease.acquire(wait_seconds=5)
    try:
        with pytest.raises(ConcurrencyError, match="LEASE_HELD"):
            back(stage, 1)
    finally:
        lease.release()

    before = versions(stage)
    with pytest.raises(ConfigError, match="START_OVER_UNBOUNDED"):
        back(stage, 1, max_rows=None)
    assert versions(stage) == before
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)


def test_a_former_owner_commits_nothing_to_tables_that_went_back(stage: Harness) -> None:
    former = stage.processor()

    back(stage, 1)

    with pytest.raises(FencedError, match="OWNER_FENCED"):
        stage.land(former, 4)
    assert stage.landed("orders") == stage.expected(0, 1)


def follower(**source: Any) -> PipelineSpec:
    record = declared() | {
        "pipeline": "mirror",
        "source": {"kind": "delta", "pipeline": "shop", "table": "orders"} | source,
    }
    return PipelineSpec.model_validate(record)


def with_follower(stage: Harness, spec: PipelineSpec) -> Catalog:
    found = stage.catalog()
    return Catalog(
        environment=found.environment, relays={}, pipelines={**found.pipelines, "mirror": spec}, root=stage.root
    )


def test_a_stream_that_follows_a_table_has_to_be_stopped_unless_it_reads_changes(stage: Harness) -> None:
    lease = Lease(stage.objects, paths.pipeline_control("mirror", "lease.json"), ttl_seconds=3, name="mirror")
    lease.acquire(wait_seconds=5)
    given: dict[str, Any] = {"dry_run": False, "max_rows": 100, "restore_point": RestorePoint(batch=1)}
    try:
        with pytest.raises(ConcurrencyError, match="RESTORE_HAS_FOLLOWER"):
            start_over(with_follower(stage, follower(skip_change_commits=True)), "shop", **given)
        start_over(with_follower(stage, follower(change_feed=True)), "shop", **given)
    finally:
        lease.release()

    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_stream_that_follows_a_table_does_not_go_on_across_its_rollback(
    stage: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaworks.sources import delta as delta_source

    back(stage, 1)
    at = PipelineHome(stage.objects, "shop").start_overs.rollback_versions("orders")[0]

    for following, refused in ((at, True), (at - 3, True), (at + 1, False), (None, False)):
        monkeypatch.setattr(delta_source, "_next_version", lambda objects, reader, now=following: now)
        if refused:
            with pytest.raises(ContractError, match="DELTA_SOURCE_ROLLED_BACK"):
                check_not_rolled_back(stage.objects, "mirror", "shop/orders", pipeline="shop", table="orders")
        else:
            check_not_rolled_back(stage.objects, "mirror", "shop/orders", pipeline="shop", table="orders")


def test_columns_a_bad_deploy_brought_go_too(stage: Harness) -> None:
    table = present(stage.lake.open(paths.table("shop", "orders")))
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    table.alter.add_columns([Field("garbage", PrimitiveType("string"), nullable=True)])

    back(stage, 3)

    table = present(stage.lake.open(paths.table("shop", "orders")))
    assert "garbage" in {field.name for field in table.schema().fields}
    back(stage, 2)
    table = present(stage.lake.open(paths.table("shop", "orders")))
    assert "garbage" not in {field.name for field in table.schema().fields}
    assert stage.landed("orders") == Counter({key: 1 for key in stage.expected(0, 1, 2)})


OLD = RecordRange(stream="shop", partition="0", number=0, first=0, last=9, batch_id=1)
NEW = RecordRange(stream="shop", partition="0", number=0, first=10, last=19, batch_id=5)
REMOVED = {"orders": ("a.parquet",)}


@pytest.mark.parametrize(
    ("missing", "since", "before", "kind"),
    [
        ({}, [], [], "restore"),
        ({"orders": ()}, [], [OLD], "restore"),
        (REMOVED, [], [], "start_over"),
        (REMOVED, [], [OLD], "none"),
        ({}, [NEW], [OLD], "none"),
        (REMOVED, [NEW], [OLD], "none"),
    ],
)
def test_the_first_way_is_taken_that_loses_nothing(
    missing: dict[str, tuple[str, ...]], since: list[RecordRange], before: list[RecordRange], kind: str
) -> None:
    way = choose_strategy(missing_files=missing, expired_after=since, expired_before=before)

    assert way.kind == kind
    assert bool(way.reasons) == (kind != "restore")
    if kind == "restore":
        way.require_restore("shop", 1)
        return
    with pytest.raises(ContractError, match="would lose rows") as refused:
        way.require_restore("shop", 1)
    assert refused.value.condition == "ROLLBACK_LOSES_ROWS"
    assert ("start-over" in refused.value.hint) == (kind == "start_over")


def test_the_reasons_name_what_is_gone() -> None:
    way = choose_strategy(missing_files=REMOVED, expired_after=[NEW], expired_before=[OLD])

    assert way.describe("shop") == (
        "nothing brings all rows back; 1 files of orders are missing, most likely removed by VACUUM; "
        "the source does not have all that landed since: shop/0/10-19; "
        "the source does not have all that landed before: shop/0/0-9"
    )
