"""A pipeline that starts over lands every row once in its new generation, wherever it is interrupted before."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.records.generations import CheckpointRecord, Generations
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.ledger import Ledger
from deltaworks.engine.recovery import check_spec, open_batch_processor
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, FencedError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.start_over import StartOverResult, start_over
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.unit.engine.hold_harness import TABLES, Harness, declared
from tests.unit.tables.log_model import drop_statistics, keep_statistics_as_struct

ALL = (*TABLES, "quarantine")
POINTS = ("planned", *(f"recreated:{name}" for name in ALL), "replays", "ledger", "spec", "begun")


def land(stage: Harness, *batches: int, **options: Any) -> None:
    """Land batches in generation 1 and note the declaration they were landed with, as a stream does."""
    processor = stage.processor()
    PipelineHome(stage.objects, "shop").specs.record_start(stage.catalog().pipeline("shop"), owner_epoch=stage.epoch)
    PipelineHome(stage.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    for batch_id in batches:
        stage.land(processor, batch_id, **options)


def over(stage: Harness, fault: str = "none", **options: int) -> StartOverResult:
    return start_over(stage.catalog(), "shop", dry_run=False, **({"max_rows": 1_000} | options), fault=crash_at(fault))


def start(stage: Harness) -> None:
    """What a stream does before its first batch."""
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=3, name="shop")
    stage.epoch = lease.acquire(wait_seconds=5)
    try:
        catalog = stage.catalog()
        home = PipelineHome(stage.objects, "shop")
        if check_spec(stage.lake, home, catalog.pipeline("shop")):
            start_over(catalog, "shop", dry_run=False, max_rows=0, lease=lease)
        open_batch_processor(None, catalog, catalog.pipeline("shop"), stage.objects, lease=lease, epoch=stage.epoch)
    finally:
        lease.release()


def test_a_dry_run_counts_and_changes_nothing(stage: Harness) -> None:
    land(stage, 0, 1, 2)

    counted = start_over(stage.catalog(), "shop")

    assert (counted.dry_run, counted.generation, counted.first_batch, counted.recreated) == (True, 2, 3, 0)
    assert {table.table: table.rows for table in counted.tables} == dict.fromkeys(ALL, 6)
    assert counted.rows == 24
    assert stage.landed("orders") == stage.expected(0, 1, 2)
    assert PipelineHome(stage.objects, "shop").start_overs.read(2) is None


def test_the_same_source_read_again_lands_every_row_once_in_columns_of_another_type(stage: Harness) -> None:
    land(stage, 0, 1, 2)
    stage.declare(orders="string")
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        start(stage)

    done = over(stage)
    start(stage)
    processor = stage.processor(generation=2)
    for batch_id in range(3):
        stage.land(processor, 3 + batch_id, seq=batch_id, generation=2)

    assert done.recreated == 4
    for name in ALL:
        assert stage.landed(name) == stage.expected(0, 1, 2), name
    table = present(stage.lake.open(paths.table("shop", "orders")))
    assert {field.name: field.type.type for field in table.schema().fields if field.name == "level"} == {
        "level": "string"
    }
    ledger = Ledger(stage.lake, "shop", 2)
    assert ledger.last_completed() == 5


@pytest.mark.parametrize("batches", [(), (0, 1)])
@pytest.mark.parametrize(("kind", "path"), [("string", "level"), ("int", "rank"), ("array<int>", "rank")])
def test_every_edit_is_safe_before_the_first_row(
    stage: Harness, batches: tuple[int, ...], kind: str, path: str
) -> None:
    land(stage, *batches, tables=())
    edit(stage, kind, path)

    start(stage)
    processor = stage.processor(generation=2)
    stage.land(processor, len(batches), generation=2)

    table = present(stage.lake.open(paths.table("shop", "orders")))
    level = next(field for field in arrow_schema(stage.spec.table("orders").column_types()) if field.name == "level")
    assert table.schema().to_arrow().field("level").type == level.type
    assert PipelineHome(stage.objects, "shop").specs.current() == stage.catalog().pipeline("shop")
    assert stage.landed("orders") == stage.expected(len(batches))
    edit(stage, "double", "rank")
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        start(stage)


@pytest.mark.parametrize("state", ["prepared", "landed", "emptied", "another_table", "quarantine"])
def test_no_edit_of_types_is_safe_once_a_table_had_a_row(stage: Harness, state: str) -> None:
    tables = {"another_table": ("logins",), "quarantine": ("quarantine",)}.get(state, (*TABLES, "quarantine"))
    land(stage, *(() if state == "prepared" else (0,)), tables=tables)
    if state == "prepared":
        stage.prepare(0)
    if state == "emptied":
        for name in ALL:
            table = present(stage.lake.open(paths.table("shop", name)))
            table.delete()
    stage.declare(orders="string")

    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        start(stage)


def test_another_path_is_safe_while_only_quarantine_has_rows_and_they_stay(stage: Harness) -> None:
    land(stage, 0, tables=("quarantine",))
    edit(stage, "int", "rank")

    start(stage)

    assert PipelineHome(stage.objects, "shop").generations.current() == 1
    assert stage.landed("quarantine") == stage.expected(0)


def edit(stage: Harness, kind: str, path: str) -> None:
    """Gives the column of `orders` another type and path."""
    changed = declared(orders=kind)
    for table in changed["tables"]:
        if table["name"] == "orders":
            table["columns"] = [{"name": "level", "path": path, "type": kind}]
    stage.spec = PipelineSpec.model_validate(changed)


def test_rows_given_up_are_read_by_time_travel_at_the_version_on_record(stage: Harness) -> None:
    land(stage, 0, 1)

    done = over(stage)

    for abandoned in done.tables:
        table = present(stage.lake.open(paths.table("shop", abandoned.table)))
        table.load_as_version(abandoned.version)
        assert table.to_pyarrow_table().num_rows == abandoned.rows == 4


@pytest.mark.parametrize("point", POINTS)
def test_broken_off_at_any_step_it_is_completed_by_the_next_call_and_nothing_starts_before(
    stage: Harness, point: str
) -> None:
    land(stage, 0, 1)
    with pytest.raises(Crash):
        over(stage, point)

    with pytest.raises(ContractError, match="START_OVER_UNFINISHED"):
        start(stage)
    with pytest.raises(ContractError, match="START_OVER_UNFINISHED"):
        replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False)
    # Whatever pipeline.yaml says by now, what is done is what is on record; and no bound is asked for again.
    done = start_over(stage.catalog(), "shop", dry_run=False)
    start(stage)
    processor = stage.processor(generation=2)
    for batch_id in range(2):
        stage.land(processor, 2 + batch_id, seq=batch_id, generation=2)

    assert done.resumed
    assert (PipelineHome(stage.objects, "shop").generations.current(), done.first_batch) == (2, 2)
    for name in ALL:
        assert stage.landed(name) == stage.expected(0, 1), name
    again = start_over(stage.catalog(), "shop")
    assert (again.generation, again.first_batch, again.resumed) == (3, 4, False)


def test_what_comes_after_an_end_that_was_not_noted_is_never_emptied_again(stage: Harness) -> None:
    land(stage, 0)
    over(stage)
    start(stage)
    stage.land(stage.processor(generation=2), 1, seq=0, generation=2)
    stage.objects.delete(paths.start_over_completion("shop", 2))

    done = over(stage)

    assert (done.resumed, done.recreated) == (True, 0)
    assert stage.landed("orders") == stage.expected(0)


def test_a_former_owner_commits_nothing_to_the_tables_made_anew(stage: Harness) -> None:
    land(stage, 0)
    former = stage.processor()

    over(stage)

    with pytest.raises(FencedError, match="OWNER_FENCED"):
        stage.land(former, 1)
    assert stage.landed("orders") == Counter()


def test_a_running_stream_is_left_alone(stage: Harness) -> None:
    land(stage, 0)
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=3, name="shop")
    lease.acquire(wait_seconds=5)

    try:
        with pytest.raises(ConcurrencyError, match="LEASE_HELD"):
            over(stage)
    finally:
        lease.release()

    assert stage.landed("orders") == stage.expected(0)


def test_a_torn_batch_is_completed_first_so_that_it_lands_in_what_is_given_up(stage: Harness) -> None:
    land(stage, 0)
    stage.prepare(1)

    done = over(stage)

    assert done.first_batch == 2
    assert {table.table: table.rows for table in done.tables} == dict.fromkeys(ALL, 4)
    assert stage.landed("orders") == Counter()


def test_nothing_is_given_up_while_a_table_lacks_rows(stage: Harness) -> None:
    land(stage, 0)
    mend = stage.break_table("orders")
    stage.land(stage.processor(), 1)
    assert "orders" in PipelineHome(stage.objects, "shop").held.read()

    with pytest.raises(DeltaworksError, match="START_OVER_TABLE_HELD"):
        over(stage)

    mend()
    assert stage.landed("clicks") == stage.expected(0, 1)
    assert PipelineHome(stage.objects, "shop").start_overs.read(2) is None


@pytest.mark.parametrize(
    ("max_rows", "condition"), [(None, "START_OVER_UNBOUNDED"), (15, "START_OVER_TOO_LARGE")], ids=["none", "too few"]
)
def test_more_rows_than_were_said_are_never_given_up(stage: Harness, max_rows: int | None, condition: str) -> None:
    land(stage, 0, 1)

    with pytest.raises(ConfigError, match=condition):
        start_over(stage.catalog(), "shop", dry_run=False, max_rows=max_rows)

    assert stage.landed("orders") == stage.expected(0, 1)


@pytest.mark.parametrize("change", [drop_statistics, keep_statistics_as_struct])
def test_rows_that_the_log_does_not_count_are_given_up_only_within_the_bound(
    stage: Harness, change: Callable[[Lake, str], None]
) -> None:
    land(stage, 0, 1)
    counted = start_over(stage.catalog(), "shop").rows
    for name in ("orders", "clicks"):
        change(stage.lake, paths.table("shop", name))

    assert start_over(stage.catalog(), "shop").rows == counted > 0
    with pytest.raises(ConfigError, match="START_OVER_TOO_LARGE"):
        start_over(stage.catalog(), "shop", dry_run=False, max_rows=counted - 1)
    for path in (stage.root / "lake" / paths.table("shop", "orders")).rglob("*.parquet"):
        path.write_bytes(b"torn")
    if change is drop_statistics:
        with pytest.raises(ContractError, match="ROWS_UNKNOWN"):
            start_over(stage.catalog(), "shop", dry_run=False, max_rows=1_000)


def test_batches_of_both_generations_are_listed_under_numbers_of_their_own(stage: Harness) -> None:
    land(stage, 0, 1)
    over(stage)
    start(stage)
    stage.land(stage.processor(generation=2), 2, seq=0, generation=2)

    history = BatchHistory(stage.lake, stage.objects, stage.spec)

    assert [(each.generation, each.batch_id) for each in history.recent()] == [(1, 0), (1, 1), (2, 2)]
    assert history.detail(1).summary.generation == 1
    assert history.detail(2).summary.generation == 2
    # What is read again is what the present generation has.
    assert [each.batch_id for each in history.completed()] == [2]


def test_a_lost_record_of_generations_is_made_anew_for_the_generation_that_runs(stage: Harness) -> None:
    land(stage, 0, 1)
    over(stage)
    stage.objects.delete(paths.pipeline_control("shop", "generations.json"))

    assert PipelineHome(stage.objects, "shop").generations.current() == 2
    renewed = PipelineHome(stage.objects, "shop").generations.current_checkpoint(last_completed=1, end_offset=None)
    assert renewed == Generations(generation=2, checkpoints=(CheckpointRecord(ordinal=2, first_batch=2, start=None),))


def test_a_pipeline_that_has_landed_nothing_starts_over_at_batch_0(stage: Harness) -> None:
    land(stage)

    done = over(stage, max_rows=0)
    start(stage)
    stage.land(stage.processor(generation=2), 0, generation=2)

    assert done.first_batch == 0
    assert stage.landed("orders") == stage.expected(0)


def test_a_record_that_is_torn_is_told_and_nothing_is_begun(stage: Harness) -> None:
    land(stage, 0)
    stage.objects.put(paths.start_over("shop", 2), b'{"format"')

    with pytest.raises(ContractError, match="START_OVER_UNREADABLE"):
        over(stage)

    stage.objects.put(paths.start_over("shop", 2), json.dumps({"format": 9}).encode())
    with pytest.raises(ContractError, match="START_OVER_UNREADABLE"):
        over(stage)
    assert stage.landed("orders") == stage.expected(0)
    shutil.rmtree(stage.root / "lake" / paths.pipeline_control("shop", "start_over"))
    assert over(stage).recreated == 4
