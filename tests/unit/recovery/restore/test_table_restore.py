"""One table goes back to before a mistake, also on S3, and every row that landed since is there once."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import table_files_lock
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.objects import S3Objects
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.repair.log_gap import check_pipeline, repair_log
from deltaworks.recovery.repair.lost_files import repair_files
from deltaworks.recovery.restore import table_restore
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore, TableRestoreResult
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import read_commits, state_at
from deltaworks.tables.steps import batch_step
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.moto_server import running_moto
from tests.unit.engine.hold_harness import TABLES, Harness
from tests.unit.recovery.restore.source_harness import SourceHarness
from tests.unit.tables.log_model import drop_statistics, keep_statistics_as_struct

ORDERS = paths.table("shop", "orders")


@pytest.fixture(scope="module")
def broken_stage(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    made = Harness.with_broken_table(tmp_path_factory.mktemp("broken"))
    assert made.landed("orders") == made.expected(1, 2, 3)
    return made


@pytest.fixture
def stage(broken_stage: Harness, tmp_path: Path) -> Harness:
    return broken_stage.copied_to(tmp_path)


def opened(stage: Harness, name: str = "orders") -> DeltaTable:
    return present(stage.lake.open(paths.table("shop", name)))


def request(point: RestorePoint | None = None, **options: Any) -> TableRestoreRequest:
    return TableRestoreRequest(**({"point": point or RestorePoint(batch=1), "max_rows": 1_000} | options))


def restore(stage: Harness, asked: TableRestoreRequest | None, fault: str = "none") -> TableRestoreResult:
    return TableRestore(stage.catalog(), "shop", "orders", fault=crash_at(fault)).run(asked)


def count(stage: Harness, asked: TableRestoreRequest) -> TableRestoreResult:
    return TableRestore(stage.catalog(), "shop", "orders").count(asked)


def test_a_dry_run_says_what_goes_and_comes_and_changes_nothing(stage: Harness) -> None:
    before = opened(stage).version()

    counted = count(stage, request())

    assert (counted.dry_run, counted.version, counted.from_version) == (True, None, before)
    assert counted.difference is not None
    assert (counted.difference.rows_removed, counted.difference.rows_added, counted.difference.files_added) == (0, 2, 1)
    assert [(each.kind, each.number, each.rows) for each in counted.lost] == [("batch", 2, 2), ("batch", 3, 2)]
    assert len(counted.undone_changes) == 1
    assert "DELETE by somebody" in counted.undone_changes[0]
    assert opened(stage).version() == before
    assert PipelineHome(stage.objects, "shop").rollbacks.newest() == 0


def test_a_mistake_is_undone_and_what_landed_since_is_there_once(stage: Harness) -> None:
    done = restore(stage, request())
    processor = stage.processor()
    stage.land(processor, 4)

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3, 4)
    assert all(stage.landed(name) == stage.expected(0, 1, 2, 3, 4) for name in (*TABLES, "quarantine"))
    recommitted = [batch for batch, outcome in stage.steps("orders") if outcome == "recommitted"]
    assert recommitted == [2, 3]
    assert done.version is not None
    changes = changed_partitions(stage.lake, ORDERS, after_version=done.version - 1, up_to_version=done.version)
    assert (len(changes.partitions), changes.is_unbounded) == (1, False)


def test_without_ids_of_its_own_the_way_back_is_taken_for_landed(
    stage: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_restore, "rollback_step", lambda pipeline, table, n: batch_step(pipeline, 1, table, 3))

    restore(stage, request())

    assert stage.landed("orders") == stage.expected(1, 2, 3)


def test_a_restore_of_delta_alone_loses_what_landed_since_for_good(stage: Harness) -> None:
    """Why batches come back in the commit: their transactions say that they have landed."""
    opened(stage).restore(stage.version_of("orders", 1))

    processor = stage.processor()
    assert processor.complete_prepared() is None
    stage.land(processor, 4)

    assert stage.landed("orders") == stage.expected(0, 1, 4)


@pytest.mark.parametrize("point", ["planned", "staged", "restored", "recorded"])
@pytest.mark.parametrize("landing", [False, True])
def test_broken_off_anywhere_it_is_gone_on_with_also_after_the_stream_has_landed_more(
    stage: Harness, point: str, landing: bool
) -> None:
    with pytest.raises(Crash):
        restore(stage, request(), point)
    if landing:
        stage.land(stage.processor(), 4)
    with pytest.raises(ContractError, match="ROLLBACK_UNFINISHED"):
        replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False)

    done = restore(stage, None)

    assert done.resumed
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3, *([4] if landing else []))
    assert PipelineHome(stage.objects, "shop").rollbacks.unfinished() is None
    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        restore(stage, None)


def test_another_table_waits_for_a_rollback_that_was_broken_off(stage: Harness) -> None:
    with pytest.raises(Crash):
        restore(stage, request(), "restored")

    with pytest.raises(ContractError, match="ROLLBACK_UNFINISHED"):
        TableRestore(stage.catalog(), "shop", "clicks").run(request())


def test_rows_merged_by_optimize_come_back_from_the_files_of_their_batches(stage: Harness) -> None:
    opened(stage).optimize.compact()
    stage.land(stage.processor(), 4)

    done = restore(stage, request())

    assert done.difference is not None
    assert (done.difference.files_removed, done.difference.rows_removed, done.difference.rows_added) == (1, 6, 8)
    assert stage.landed("orders") == stage.expected(0, 1, 2, 3, 4)


def test_rows_that_are_to_stay_out_stay_out_and_a_later_restore_does_not_bring_them_back(stage: Harness) -> None:
    restore(stage, request(repair="none"))
    assert stage.landed("orders") == stage.expected(0, 1)
    stage.land(stage.processor(), 4)
    before = opened(stage).version()
    opened(stage).delete("_seq = 4")

    restore(stage, request(RestorePoint(batch=1)))

    assert opened(stage).version() > before
    assert stage.landed("orders") == stage.expected(0, 1, 4)
    assert {outcome for batch, outcome in stage.steps("orders") if batch == 2} >= {"committed", "rolled_back"}


def test_versions_and_times_are_ways_to_say_where_to(stage: Harness) -> None:
    at_batch = count(stage, request())
    table = opened(stage)
    made = {entry["version"]: entry["timestamp"] for entry in table.history()}
    instant = dt.datetime.fromtimestamp(made[at_batch.to_version] / 1000, tz=dt.UTC)

    assert count(stage, request(RestorePoint(version=at_batch.to_version))).lost == at_batch.lost
    assert count(stage, request(RestorePoint(time=instant))).to_version == at_batch.to_version
    with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
        count(stage, request(RestorePoint(time=instant - dt.timedelta(days=1))))
    with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
        count(stage, request(RestorePoint(version=99)))
    with pytest.raises(ConfigError, match="BATCH_UNKNOWN"):
        count(stage, request(RestorePoint(batch=99)))
    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        RestorePoint(version=1, batch=1)


def test_files_that_vacuum_removed_are_named_before_anything_changes(stage: Harness) -> None:
    gone = next(iter(state_at(stage.lake, stage.objects, ORDERS, 2).files))[0]
    (stage.root / "lake" / ORDERS / gone).unlink()

    counted = count(stage, request())
    with pytest.raises(ContractError, match="RESTORE_FILES_MISSING") as refused:
        restore(stage, request())

    assert counted.missing_files == (gone,)
    assert gone in str(refused.value)
    assert PipelineHome(stage.objects, "shop").rollbacks.newest() == 0
    assert stage.landed("orders") == stage.expected(1, 2, 3)


def test_batches_whose_files_are_gone_are_named_and_can_be_left_to_the_source(stage: Harness) -> None:
    opened(stage).optimize.compact()
    opened(stage).vacuum(0, dry_run=False, enforce_retention_duration=False)

    counted = count(stage, request(RestorePoint(batch=3)))
    assert counted.unprepared == ()
    table = opened(stage)
    stage.objects.delete(paths.prepared_batch("shop", 1, 3))
    stage.land(stage.processor(), 4)
    table = opened(stage)
    table.delete("_seq = 4")

    with pytest.raises(ContractError, match="RESTORE_FILES_MISSING"):
        restore(stage, request(RestorePoint(batch=2)))
    assert count(stage, request(RestorePoint(batch=2))).unprepared == (3,)


@pytest.mark.parametrize(
    ("max_rows", "condition"), [(None, "RESTORE_UNBOUNDED"), (5, "RESTORE_TOO_LARGE")], ids=["none", "too few"]
)
def test_files_of_more_rows_than_were_said_never_go(stage: Harness, max_rows: int | None, condition: str) -> None:
    opened(stage).optimize.compact()

    with pytest.raises(ConfigError, match=condition):
        restore(stage, request(max_rows=max_rows))

    assert PipelineHome(stage.objects, "shop").rollbacks.newest() == 0


@pytest.mark.parametrize("change", [drop_statistics, keep_statistics_as_struct])
def test_rows_that_the_log_does_not_count_are_bounded_too(stage: Harness, change: Callable[[Lake, str], None]) -> None:
    change(stage.lake, ORDERS)
    restored: dict[str, Any] = {"point": RestorePoint(version=0), "repair": "none"}

    counted = count(stage, request(**restored))
    assert counted.difference is not None
    rows = counted.difference.rows_removed
    assert rows is not None
    assert rows > 0
    with pytest.raises(ConfigError, match="RESTORE_TOO_LARGE"):
        restore(stage, request(**restored, max_rows=rows - 1))
    restore(stage, request(**restored, max_rows=rows))

    assert not stage.landed("orders")


def test_nothing_goes_back_while_the_rows_of_a_file_cannot_be_counted(stage: Harness) -> None:
    drop_statistics(stage.lake, ORDERS)
    state = state_at(stage.lake, stage.objects, ORDERS)
    (path, _), *_ = state.files
    (stage.root / "lake" / ORDERS / path).write_bytes(b"PAR1 torn PAR1")

    with pytest.raises(ContractError, match="ROWS_UNKNOWN"):
        restore(stage, request(RestorePoint(version=0), repair="none"))

    assert state_at(stage.lake, stage.objects, ORDERS).version == state.version


def test_nothing_goes_back_within_the_turn_of_another_job(stage: Harness) -> None:
    def short(table: str) -> Any:
        return write_turn(stage.objects, "shop", table, by="test", wait_seconds=1)

    with (
        write_turn(stage.objects, "shop", "orders", by="merge"),
        pytest.raises(ConcurrencyError, match="TURN_NOT_GRANTED"),
    ):
        TableRestore(stage.catalog(), "shop", "orders", get_turn=short).run(request())

    assert stage.landed("orders") == stage.expected(1, 2, 3)


def test_a_commit_that_comes_in_between_is_never_undone_unseen(stage: Harness) -> None:
    def compact_meanwhile(point: str) -> None:
        if point == "planned":
            opened(stage).optimize.compact()

    TableRestore(stage.catalog(), "shop", "orders", fault=compact_meanwhile).run(request())

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)


def test_beside_a_running_stream_the_table_is_held_and_catches_up_afterwards(stage: Harness) -> None:
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=30, name="shop")
    lease.acquire(wait_seconds=5)
    processor, over = stage.processor(), threading.Event()

    def serve() -> None:
        while not over.wait(0.05):
            processor.serve_requests()

    def land_meanwhile(point: str) -> None:
        if point == "planned":
            stage.land(processor, 4)

    stream = threading.Thread(target=serve)
    stream.start()
    try:
        TableRestore(stage.catalog(), "shop", "orders", fault=land_meanwhile).run(request())
    finally:
        over.set()
        stream.join()
        lease.release()
    processor.serve_requests()

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3, 4)
    assert [outcome for batch, outcome in stage.steps("orders") if batch == 4] == ["held", "caught_up"]


def test_a_commit_that_only_puts_files_back_is_told_from_an_append(stage: Harness) -> None:
    done = restore(stage, request())

    assert done.version is not None
    (_, actions), *_ = read_commits(stage.lake, ORDERS, [done.version])
    assert actions is not None
    removed = [action["remove"] for action in actions if "remove" in action]
    assert [each["dataChange"] for each in removed] == [True]
    assert pq.read_metadata(stage.root / "lake" / ORDERS / removed[0]["path"]).num_rows == 0


def test_unknown_tables_are_named(stage: Harness) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        TableRestore(stage.catalog(), "shop", "nothing")


def test_a_table_that_only_takes_appends_is_refused(stage: Harness) -> None:
    opened(stage).alter.set_table_properties({"delta.appendOnly": "true"})

    with pytest.raises(ContractError, match="RESTORE_UNSUPPORTED"):
        restore(stage, request())


def test_files_that_are_being_deleted_are_not_put_back(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened(stage).version()
    monkeypatch.setattr(table_restore, "table_files_lock", partial(table_files_lock, wait_seconds=0))
    with table_files_lock(stage.objects, "shop", "orders", work="VACUUM"), pytest.raises(ConcurrencyError) as refused:
        restore(stage, request())

    assert refused.value.condition == "TABLE_FILES_HELD"
    assert (opened(stage).version(), PipelineHome(stage.objects, "shop").rollbacks.newest()) == (before, 0)


@dataclass
class S3Harness(SourceHarness):
    """The lake lies in a bucket, the landing folder on disk."""

    endpoint: str = ""

    @property
    def storage(self) -> StorageSpec:
        return StorageSpec(
            root="s3://lake/below",
            endpoint=self.endpoint,
            path_style=True,
            access_key="env:TEST_ACCESS_KEY",
            secret_key="env:TEST_SECRET_KEY",
        )


@pytest.fixture
def stage_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Harness]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    made = S3Harness.at(tmp_path)
    assert isinstance(made, S3Harness)
    with running_moto() as made.endpoint:
        S3Objects(made.storage)._client.create_bucket(Bucket="lake")
        yield made


@pytest.mark.integration
def test_a_table_goes_back_and_is_mended_from_a_checkpoint_on(stage_on_s3: S3Harness) -> None:
    processor = stage_on_s3.land_all(0, 1, 2)
    table = present(stage_on_s3.lake.open(ORDERS))
    table.create_checkpoint()
    stage_on_s3.land_object(processor, 3)
    before = stage_on_s3.contents()
    table = present(stage_on_s3.lake.open(ORDERS))
    table.delete("_seq <= 2")

    request = TableRestoreRequest(point=RestorePoint(batch=3), max_rows=100)
    done = TableRestore(stage_on_s3.catalog(), "shop", "orders").run(request)

    assert stage_on_s3.contents() == before
    assert done.version == table.version() + 1

    stage_on_s3.objects.delete(f"{ORDERS}/_delta_log/{table.version():020d}.json")
    assert [each.kind for each in check_pipeline(stage_on_s3.catalog(), "shop")] == ["log_gap"]
    mended = repair_log(stage_on_s3.catalog(), "shop", "orders", dry_run=False, max_rows=100)
    assert mended.filled == (table.version(),)
    assert stage_on_s3.contents() == before

    name = next(iter(state_at(stage_on_s3.lake, stage_on_s3.objects, ORDERS).files))[0]
    stage_on_s3.objects.delete(f"{ORDERS}/{name}")
    assert [each.kind for each in check_pipeline(stage_on_s3.catalog(), "shop")] == ["files_damaged"]
    repair_files(stage_on_s3.catalog(), "shop", "orders", dry_run=False, max_rows=100)
    assert stage_on_s3.contents() == before
    assert check_pipeline(stage_on_s3.catalog(), "shop") == []
