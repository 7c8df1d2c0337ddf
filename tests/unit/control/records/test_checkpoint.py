"""A damaged checkpoint and a lost ledger are rejected by name before a query starts."""

from __future__ import annotations

import json

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.control.records.checkpoint import (
    damaged_files,
    describe_ledger_gap,
    live_next_version,
    reject_damaged_checkpoint,
    reject_lost_ledger,
)
from deltaworks.control.records.generations import CheckpointRecord, Generations
from deltaworks.errors import ContractError

FIRST = Generations.first()
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"seq": 12}\n'
COMMIT = b'v1\n{"nextBatchWatermarkMs":0}\n'


def key(name: str, ordinal: int = 1) -> str:
    return f"{paths.checkpoint('games', 1, ordinal)}/{name}"


def write_checkpoint(objects: ObjectStore, batches: int, *, committed: int | None = None, ordinal: int = 1) -> None:
    objects.put(key("metadata", ordinal), b'{"id":"x"}')
    for number in range(batches):
        objects.put(key(f"offsets/{number}", ordinal), OFFSETS)
    for number in range(batches if committed is None else committed):
        objects.put(key(f"commits/{number}", ordinal), COMMIT)


def prepare(objects: ObjectStore, *batches: int) -> None:
    for batch in batches:
        objects.put(paths.prepared_batch("games", 1, batch), b"{}")


def test_an_intact_checkpoint_passes(objects: ObjectStore) -> None:
    assert damaged_files(PipelineHome(objects, "games"), FIRST) == []
    write_checkpoint(objects, 12, committed=11)
    assert damaged_files(PipelineHome(objects, "games"), FIRST) == []


@pytest.mark.parametrize("name", ["offsets/11", "offsets/10", "commits/11", "metadata"])
@pytest.mark.parametrize("damage", [b"", b"v1", b'v1\n{"batchWater', b"\x00\x00", b'{"id'])
def test_each_damaged_file_a_start_reads_is_named(local_objects: LocalObjects, name: str, damage: bytes) -> None:
    write_checkpoint(local_objects, 12)
    local_objects.put(key(name), damage)

    with pytest.raises(ContractError, match="CHECKPOINT_DAMAGED") as caught:
        reject_damaged_checkpoint(PipelineHome(local_objects, "games"), FIRST)

    assert name in caught.value.message
    assert "checkpoint repair games" in caught.value.hint


def test_a_source_without_an_offset_is_not_damaged(local_objects: LocalObjects) -> None:
    write_checkpoint(local_objects, 1)
    local_objects.put(key("offsets/0"), b"v1\n{}\n-\n")

    assert damaged_files(PipelineHome(local_objects, "games"), FIRST) == []


def test_missing_offsets_of_a_committed_batch_are_named(local_objects: LocalObjects) -> None:
    write_checkpoint(local_objects, 3)
    local_objects.delete(key("offsets/2"))

    (found,) = damaged_files(PipelineHome(local_objects, "games"), FIRST)
    assert found.key.endswith("offsets/2")


def ledger_gap(objects: ObjectStore, last: int | None, generations: Generations | None = FIRST) -> str:
    return describe_ledger_gap(PipelineHome(objects, "games"), generations, generation=1, last_completed=last)


@pytest.mark.parametrize(("prepared", "last"), [((), None), ((0,), None), ((0, 1), 0), ((0, 1), 1), ((7,), 7)])
def test_a_ledger_that_is_up_to_date_passes(
    local_objects: LocalObjects, prepared: tuple[int, ...], last: int | None
) -> None:
    prepare(local_objects, *prepared)
    write_checkpoint(local_objects, 0 if last is None else last + 2, committed=0 if last is None else last + 1)

    assert ledger_gap(local_objects, last) == ""


@pytest.mark.parametrize(("prepared", "last"), [((0, 1), None), ((7,), None), ((0, 1, 2, 3), 1)])
def test_a_batch_prepared_too_far_ahead_reveals_a_lost_ledger(
    local_objects: LocalObjects, prepared: tuple[int, ...], last: int | None
) -> None:
    prepare(local_objects, *prepared)

    assert "is prepared" in ledger_gap(local_objects, last)
    with pytest.raises(ContractError, match="LEDGER_BEHIND"):
        reject_lost_ledger(PipelineHome(local_objects, "games"), FIRST, generation=1, last_completed=last)


@pytest.mark.parametrize("last", [None, 0, 1])
def test_a_batch_committed_by_spark_reveals_a_lost_ledger(local_objects: LocalObjects, last: int | None) -> None:
    write_checkpoint(local_objects, 3)

    assert "has committed batch 2" in ledger_gap(local_objects, last)


def test_spark_batches_are_counted_from_the_first_batch_of_their_checkpoint(local_objects: LocalObjects) -> None:
    write_checkpoint(local_objects, 3, ordinal=2)
    second = Generations(
        generation=1, checkpoints=(*FIRST.checkpoints, CheckpointRecord(ordinal=2, first_batch=10, start={"seq": 9}))
    )

    assert ledger_gap(local_objects, 12, second) == ""
    assert "has committed batch 12" in ledger_gap(local_objects, 11, second)


LIVE_FOLDER = paths.live_checkpoint("games", 1, "live")


def plan_batch(objects: ObjectStore, batch: int, version: int, *, starting: bool = False) -> None:
    offset = {"reservoirVersion": version, "index": -1, "isStartingVersion": starting}
    objects.put(f"{LIVE_FOLDER}/offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}'.encode())


def commit_batch(objects: ObjectStore, batch: int) -> None:
    objects.put(f"{LIVE_FOLDER}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def test_a_query_that_has_not_started_has_read_nothing(objects: ObjectStore) -> None:
    assert live_next_version(PipelineHome(objects, "games"), "live") == 0


def test_an_uncommitted_batch_does_not_count(objects: ObjectStore) -> None:
    plan_batch(objects, 9, 5)
    commit_batch(objects, 9)
    plan_batch(objects, 10, 8)
    assert live_next_version(PipelineHome(objects, "games"), "live") == 5
    commit_batch(objects, 10)
    assert live_next_version(PipelineHome(objects, "games"), "live") == 8


def test_during_the_initial_snapshot_nothing_counts_as_read(objects: ObjectStore) -> None:
    plan_batch(objects, 0, 3, starting=True)
    commit_batch(objects, 0)
    assert live_next_version(PipelineHome(objects, "games"), "live") == 0
