"""Control tables are compacted during a stream without changing their content."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.engine.ledger import Ledger
from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance.control_tables import compact_control_tables
from deltaworks.maintenance.table_health.snapshots import snapshot_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.log import commit_history
from deltaworks.testing import present
from tests.unit.engine.hold_harness import Harness

STORES = ("checkpoint_store", "batch_metadata_store")


@pytest.fixture
def catalog(stage: Harness) -> Catalog:
    return stage.catalog()


def files(stage: Harness, name: str) -> int:
    return len(present(stage.lake.open(paths.pipeline_control("shop", name))).file_uris())


def test_compaction_keeps_the_ledger_content(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(6):
        stage.land(processor, batch_id, tables=("clicks", "orders") if batch_id == 2 else ("clicks",))
    mend()
    before = {name: stage.lake.rows(paths.pipeline_control("shop", name)) for name in STORES}

    counted = compact_control_tables(catalog, "shop", min_files=3)
    assert {(result.files_merged, result.dry_run) for result in counted if result.table in STORES} == {(6, True)}
    assert {files(stage, name) for name in STORES} == {6}
    compact_control_tables(catalog, "shop", dry_run=False, min_files=3)

    assert {files(stage, name) for name in STORES} == {1}
    for name in STORES:
        rows = present(stage.lake.rows(paths.pipeline_control("shop", name)))
        assert before[name] is not None
        assert sorted(map(str, rows.to_pylist())) == sorted(map(str, before[name].to_pylist()))
    ledger = Ledger(stage.lake, "shop", 1)
    assert (ledger.last_completed(), ledger.end_offset(3), ledger.uncommitted_batches()) == (
        5,
        {"seq": 3},
        {"orders": [2]},
    )
    stage.land(stage.processor(), 6)
    assert stage.landed("orders") == stage.expected(2, 6)


def test_a_table_with_few_files_is_not_compacted(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)

    results = compact_control_tables(catalog, "shop", dry_run=False)

    assert {result.files_merged for result in results} == {0}
    assert files(stage, "checkpoint_store") == 1


def test_one_pipeline_at_a_time_compacts_the_health_snapshots(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    now = dt.datetime.now(tz=dt.UTC)
    for minutes in range(4):
        snapshot_tables(catalog, now=now.replace(hour=12) + dt.timedelta(minutes=minutes))
    rows = stage.lake.rows(paths.table_snapshots())

    def snapshots() -> int:
        return len(present(stage.lake.open(paths.table_snapshots())).file_uris())

    with maintenance_lock(
        stage.objects, "edits", work="its upkeep", folder=paths.table_snapshots_maintenance(), ttl_seconds=0.3
    ):
        left = {each.table: each for each in compact_control_tables(catalog, "shop", dry_run=False, min_files=2)}
    assert (left["table_health"].reason, snapshots()) == ("another pipeline's run compacts it", 4)

    kept = {each.table: each for each in compact_control_tables(catalog, "shop", dry_run=False, min_files=2)}

    assert (kept["table_health"].files_merged, snapshots()) == (4, 1)
    after = stage.lake.rows(paths.table_snapshots())
    assert rows is not None
    assert after is not None
    assert sorted(map(str, after.to_pylist())) == sorted(map(str, rows.to_pylist()))


def test_nothing_is_compacted_during_another_maintenance_run(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    with maintenance_lock(stage.objects, "shop", work="VACUUM", ttl_seconds=0.3):
        assert compact_control_tables(catalog, "shop", min_files=2)[0].files_merged == 3, "a dry run needs no lock"
        with pytest.raises(ConcurrencyError, match="MAINTENANCE_RUNNING"):
            compact_control_tables(catalog, "shop", dry_run=False, min_files=2)

    assert files(stage, "checkpoint_store") == 3


def test_compaction_during_a_stream_is_safe(stage: Harness, catalog: Catalog) -> None:
    processor, ended = stage.processor(), threading.Event()
    failed: list[Exception] = []
    landed = 0

    def merge() -> None:
        try:
            while not ended.is_set():
                compact_control_tables(catalog, "shop", dry_run=False, min_files=2)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    for landed in range(15):
        stage.land(processor, landed)
    ended.set()
    thread.join()

    assert failed == []
    assert stage.landed("orders") == stage.expected(*range(15))
    rows = present(stage.lake.rows(paths.pipeline_control("shop", "checkpoint_store")))
    assert sorted(rows["batch_id"].to_pylist()) == list(range(15))


def test_every_commit_names_its_run(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)

    compact_control_tables(catalog, "shop", dry_run=False, min_files=2)

    for name in STORES:
        key = paths.pipeline_control("shop", name)
        table = present(stage.lake.open(key))
        newest = list(commit_history(stage.lake, key, newest=table.version(), limit=1))
        assert newest[0].metadata["operation"] == "compact_control_table"
