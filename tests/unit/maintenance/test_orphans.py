"""Orphans are removed; files that are, were or may become part of a table are kept."""

from __future__ import annotations

import json
import os
import time
import uuid
from functools import partial
from pathlib import Path

import pytest

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.records.generations import CheckpointRecord, Generations
from deltaworks.control.records.prepared import PreparedReplay, PreparedTable
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.maintenance.deletion_limits import DeletionLimit
from deltaworks.maintenance.orphans import OrphanResult, remove_old_prepared, remove_orphans
from deltaworks.specs.catalog import Catalog
from deltaworks.testing import present, write_files
from tests.unit.engine.hold_harness import TABLES, Harness
from tests.unit.tables.test_vacuum_candidates import z85

WEEKS = 40 * 86_400


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr("deltaworks.engine.commit.RETRY_SECONDS", (0.0,))
    return Harness.at(tmp_path)


@pytest.fixture
def catalog(stage: Harness) -> Catalog:
    return stage.catalog()


def folder(stage: Harness, name: str) -> Path:
    return stage.root / "lake" / paths.table("shop", name)


def data_files(stage: Harness, name: str) -> set[str]:
    root = folder(stage, name)
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet") if "_delta_log" not in str(path)}


def age(stage: Harness, seconds: float = WEEKS) -> None:
    """Ages all files by weeks."""
    then = time.time() - seconds
    for path in (stage.root / "lake").rglob("*"):
        if path.is_file() and "_delta_log" not in str(path):
            os.utime(path, (then, then))


def orphan(stage: Harness, name: str = "orders", file: str = "event_date=2024-01-01/part-dead.zstd.parquet") -> Path:
    path = folder(stage, name) / file
    write_files(folder(stage, name), {file: b"x" * 100})
    return path


def by_what(results: list[OrphanResult]) -> dict[str, OrphanResult]:
    return {result.target: result for result in results}


def test_nothing_is_removed_during_another_maintenance_run(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    dead = orphan(stage)
    age(stage)
    with maintenance_lock(stage.objects, "shop", work="OPTIMIZE", ttl_seconds=0.3):
        assert by_what(remove_orphans(catalog, "shop"))["orders"].files == 1, "a dry run needs no lock"
        with pytest.raises(ConcurrencyError, match="MAINTENANCE_RUNNING"):
            remove_orphans(catalog, "shop", dry_run=False)
        assert dead.exists()

    remove_orphans(catalog, "shop", dry_run=False)

    assert not dead.exists()


def test_an_orphan_is_listed_and_then_removed_and_rows_stay(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    dead = [orphan(stage), orphan(stage, "quarantine", "part-dead.zstd.parquet")]
    age(stage)

    listed = by_what(remove_orphans(catalog, "shop"))
    assert (listed["orders"].files, listed["orders"].bytes, listed["orders"].dry_run) == (1, 100, True)
    assert all(path.exists() for path in dead)
    removed = by_what(remove_orphans(catalog, "shop", dry_run=False))

    assert (removed["orders"].files, removed["quarantine"].files, removed["clicks"].files) == (1, 1, 0)
    assert not any(path.exists() for path in dead)
    for name in TABLES:
        assert stage.landed(name) == stage.expected(0, 1, 2)


def test_orphans_beyond_the_limit_are_skipped_with_an_alert(
    stage: Harness, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaworks.maintenance.deletion_limits.UNLIMITED_BYTES", 0)
    stage.land(stage.processor(), 0)
    orphan(stage).write_bytes(b"x" * 10_000_000)
    dead = orphan(stage, "quarantine", "part-dead.zstd.parquet")
    age(stage)
    night = partial(remove_orphans, catalog, "shop", dry_run=False)

    bounded = by_what(night(limit=DeletionLimit(share=0.9)))
    open_ones = [(each.cause, each.subject) for each in alerts(stage.objects) if each.state.is_open]
    by_hand = by_what(night())

    assert (bounded["orders"].files, bounded["quarantine"].files) == (0, 1)
    assert "exceed the nightly deletion limit" in bounded["orders"].reason
    assert open_ones == [("MAINTENANCE_LIMIT_EXCEEDED", "shop.orders")]
    assert not dead.exists()
    assert by_hand["orders"].files == 1
    night(limit=DeletionLimit(share=0.9))
    assert not any(each.state.is_open for each in alerts(stage.objects))


def test_a_young_file_is_left_alone(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    dead = orphan(stage)

    assert by_what(remove_orphans(catalog, "shop", dry_run=False))["orders"].files == 0
    assert dead.exists()


def test_files_of_an_interrupted_batch_are_kept(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    stage.prepare(1)
    age(stage)

    results = by_what(remove_orphans(catalog, "shop", dry_run=False))
    stage.processor().complete_prepared()

    assert {results[name].files for name in TABLES} == {0}
    assert results["prepared batches"].reason == ""
    assert stage.landed("orders") == stage.expected(0, 1)


def test_files_of_a_held_table_are_kept(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(3):
        stage.land(processor, batch_id)
    mend()
    age(stage)

    results = by_what(remove_orphans(catalog, "shop", dry_run=False))
    assert results["orders"].files == 0
    assert results["prepared batches"].reason == "none removed: a table is held"
    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    processor.serve_requests()

    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_files_of_a_replay_or_reprocess_are_kept(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    named = [orphan(stage, file="event_date=2024-01-01/part-replay.parquet"), orphan(stage, file="part-again.parquet")]
    root = folder(stage, "orders")
    file = {"path": str(named[0].relative_to(root))}
    replay = PreparedReplay(
        pipeline="shop",
        ordinal=1,
        replay_id="",
        run="",
        prepared_at="",
        spec_fingerprint="",
        code_version="",
        tables=(PreparedTable(table="orders", writer="fan_out", rows=1, files=(file,)),),
    )
    PipelineHome(stage.objects, "shop").replays.create(replay)
    stage.objects.put(paths.reprocess("shop", "r1/files.json"), f'["{named[1].relative_to(root)}"]'.encode())
    age(stage)

    assert by_what(remove_orphans(catalog, "shop", dry_run=False))["orders"].files == 0
    assert all(path.exists() for path in named)


def test_files_that_were_in_the_log_are_left_to_vacuum(stage: Harness, catalog: Catalog) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)
    table = present(stage.lake.open(paths.table("shop", "orders")))
    table.optimize.compact()
    before = data_files(stage, "orders")
    age(stage)

    results = by_what(remove_orphans(catalog, "shop", dry_run=False))
    # The compacted files are older than the table's retention.
    listed = by_what(remove_orphans(catalog, "shop", age_hours=0))

    assert (results["orders"].files, listed["orders"].files) == (0, 0)
    assert data_files(stage, "orders") == before


def test_the_deletion_vector_of_a_live_file_is_kept(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    vector = mark_a_row(stage, "orders")
    age(stage)

    result = by_what(remove_orphans(catalog, "shop", dry_run=False))["orders"]

    assert (result.files, result.reason) == (0, "")
    assert vector.exists()


def mark_a_row(stage: Harness, name: str) -> Path:
    """Deletes a row with a deletion vector, like Spark; returns the vector."""
    log, marked = folder(stage, name) / "_delta_log", uuid.uuid4()
    commits = sorted(log.glob("*.json"))
    actions = [json.loads(line) for path in commits for line in path.read_text().splitlines()]
    (added, *_) = (action["add"] for action in actions if "add" in action)
    feature = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature}
    where = {"storageType": "u", "pathOrInlineDv": z85(marked.bytes), "offset": 1, "sizeInBytes": 9, "cardinality": 1}
    removed = {"path": added["path"], "deletionTimestamp": int(time.time() * 1000), "dataChange": True}
    commit = [{"protocol": protocol}, {"remove": removed}, {"add": {**added, "deletionVector": where}}]
    (log / f"{len(commits):020d}.json").write_text("".join(json.dumps(action) + "\n" for action in commit))
    vector = folder(stage, name) / f"deletion_vector_{marked}.bin"
    vector.write_bytes(b"x")
    return vector


def test_staged_files_of_no_batch_are_removed(stage: Harness, catalog: Catalog) -> None:
    stage.land(stage.processor(), 0)
    key = f"{paths.pipeline_control('shop', 'staging/orders')}/part-dead.parquet"
    stage.objects.put(key, b"x")
    age(stage)

    assert by_what(remove_orphans(catalog, "shop", dry_run=False))["orders (staged)"].files == 1
    assert stage.objects.get(key) is None


def test_removing_young_files_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match="ORPHAN_AGE_TOO_SHORT"):
        remove_orphans(catalog, "shop", dry_run=False, age_hours=24)
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        remove_orphans(catalog, "shop", tables=["nothing"])


class TestPreparedBatches:
    """Old complete prepared batches are removed, oldest first."""

    def test_only_what_is_old_and_not_among_the_last_is_removed(self, stage: Harness) -> None:
        processor = stage.processor()
        for batch_id in range(6):
            stage.land(processor, batch_id, tables=("clicks",))
        stage.prepare(6, tables=("clicks",))
        age(stage)

        assert (
            remove_old_prepared(stage.lake, PipelineHome(stage.objects, "shop"), keep_all=False, min_batches=3).removed
            == 3
        )
        done = remove_old_prepared(
            stage.lake, PipelineHome(stage.objects, "shop"), keep_all=False, min_batches=3, dry_run=False
        )

        left = [batch for batch in range(7) if PipelineHome(stage.objects, "shop").prepared.read(1, batch) is not None]
        assert (done.removed, left) == (3, [3, 4, 5, 6])

    def test_all_of_a_generation_that_is_over_are_removed_once_they_are_old(self, stage: Harness) -> None:
        processor = stage.processor()
        for batch_id in range(2):
            stage.land(processor, batch_id, tables=("clicks",))
        begun = Generations(generation=2, checkpoints=(CheckpointRecord(ordinal=1, first_batch=2, start=None),))
        stage.objects.put(paths.pipeline_control("shop", "generations.json"), begun.encode())
        assert remove_old_prepared(stage.lake, PipelineHome(stage.objects, "shop"), keep_all=False).removed == 0
        age(stage)
        stage.prepare(2, tables=("clicks",), generation=2)

        done = remove_old_prepared(stage.lake, PipelineHome(stage.objects, "shop"), keep_all=False, dry_run=False)

        assert done.removed == 2
        assert PipelineHome(stage.objects, "shop").prepared.read(1, 1) is None
        assert PipelineHome(stage.objects, "shop").prepared.read(2, 2) is not None

    def test_a_young_one_stays(self, stage: Harness) -> None:
        processor = stage.processor()
        for batch_id in range(3):
            stage.land(processor, batch_id, tables=("clicks",))

        assert (
            remove_old_prepared(
                stage.lake, PipelineHome(stage.objects, "shop"), keep_all=False, min_batches=0, dry_run=False
            ).removed
            == 0
        )
