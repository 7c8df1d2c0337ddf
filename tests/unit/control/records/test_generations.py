"""Spark's batch numbers map to ours; damaged checkpoints and lost ledgers are rejected by name."""

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
from deltaworks.errors import ConcurrencyError, ContractError, TransientError

OFFSETS_OF_SPARK = 'v1\n{"batchWatermarkMs":0}\n{"seq": 12, "files": 3}\n'


def write_numbered_checkpoint(objects: ObjectStore, ordinal: int, batches: int) -> None:
    folder = paths.checkpoint("games", 1, ordinal)
    objects.put(f"{folder}/metadata", b"{}")
    for number in range(batches):
        objects.put(f"{folder}/offsets/{number}", OFFSETS_OF_SPARK.replace("12", str(12 + number)).encode())


def checkpoint(objects: ObjectStore, last: int | None, end: dict[str, int] | None = None) -> Generations:
    return PipelineHome(objects, "games").generations.current_checkpoint(last_completed=last, end_offset=end)


def test_a_new_pipeline_starts_at_batch_zero(objects: ObjectStore) -> None:
    first = checkpoint(objects, None)

    assert first == Generations(generation=1, checkpoints=(CheckpointRecord(ordinal=1, first_batch=0, start=None),))
    assert checkpoint(objects, None) == first


def test_an_existing_checkpoint_is_used(objects: ObjectStore) -> None:
    first = checkpoint(objects, None)
    write_numbered_checkpoint(objects, 1, 5)

    assert checkpoint(objects, 4, {"seq": 16}) == first


def test_a_lost_checkpoint_is_replaced_by_one_after_the_ledgers_last_batch(objects: ObjectStore) -> None:
    checkpoint(objects, None)

    renewed = checkpoint(objects, 4, {"seq": 16})

    assert renewed.current == CheckpointRecord(ordinal=2, first_batch=5, start={"seq": 16})
    assert renewed.generation == 1
    assert checkpoint(objects, 4, {"seq": 16}) == renewed
    assert paths.checkpoint("games", 1, renewed.current.ordinal).endswith("g000001/c0002")


def test_a_checkpoint_can_be_lost_repeatedly(objects: ObjectStore) -> None:
    checkpoint(objects, None)
    checkpoint(objects, 4, {"seq": 16})
    write_numbered_checkpoint(objects, 2, 3)
    assert checkpoint(objects, 7, {"seq": 30}).current.ordinal == 2

    objects.delete(f"{paths.checkpoint('games', 1, 2)}/metadata")
    renewed = checkpoint(objects, 7, {"seq": 30})

    assert renewed.current == CheckpointRecord(ordinal=3, first_batch=8, start={"seq": 30})
    assert len(renewed.checkpoints) == 3


def test_a_checkpoint_without_batches_is_not_lost(objects: ObjectStore) -> None:
    checkpoint(objects, None)
    renewed = checkpoint(objects, 4, {"seq": 16})

    assert checkpoint(objects, 4, {"seq": 16}) == renewed


def test_two_processes_that_change_the_record_do_not_overwrite_each_other(local_objects: LocalObjects) -> None:
    checkpoint(local_objects, None)

    class Overtaken(LocalObjects):
        def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
            return None

    with pytest.raises(ConcurrencyError, match="GENERATION_CONTENDED"):
        checkpoint(Overtaken(local_objects._root), 4, {"seq": 16})


def test_the_end_of_a_batch_is_read_from_sparks_offset_log(objects: ObjectStore) -> None:
    generations = checkpoint(objects, None)
    write_numbered_checkpoint(objects, 1, 2)

    assert PipelineHome(objects, "games").generations.end_offset(generations, 1) == {"seq": 13, "files": 3}


@pytest.mark.parametrize("damage", [None, b"", b"v1\n{}", b"v1\n{}\n-\n", b'v1\n{}\n{"seq": 1'])
def test_a_batch_without_an_end_offset_is_not_prepared(local_objects: LocalObjects, damage: bytes | None) -> None:
    generations = checkpoint(local_objects, None)
    if damage is not None:
        local_objects.put(f"{paths.checkpoint('games', 1, 1)}/offsets/2", damage)

    with pytest.raises(TransientError, match="OFFSET_LOG_UNREADABLE"):
        PipelineHome(local_objects, "games").generations.end_offset(generations, 2)


def test_a_record_survives_json() -> None:
    generations = Generations(
        generation=2,
        checkpoints=(
            CheckpointRecord(ordinal=1, first_batch=0, start=None),
            CheckpointRecord(ordinal=2, first_batch=5, start={"seq": 1}, retired=True),
        ),
    )

    assert Generations.decode(generations.encode(), key="k") == generations


def test_a_record_of_an_earlier_release_is_read(local_objects: LocalObjects) -> None:
    record = {"generation": 1, "checkpoints": [{"ordinal": 1, "first_batch": 0, "start": None}]}
    local_objects.put(paths.pipeline_control("games", "generations.json"), json.dumps(record).encode())

    assert checkpoint(local_objects, None) == Generations.first()


def test_an_unreadable_record_is_rejected(local_objects: LocalObjects) -> None:
    local_objects.put(paths.pipeline_control("games", "generations.json"), b'{"generation": 1, "che')

    with pytest.raises(ContractError, match="GENERATIONS_UNREADABLE"):
        checkpoint(local_objects, 4, {"seq": 16})


class TestRetired:
    """A retired checkpoint is never used again."""

    def test_the_next_one_continues_after_the_ledgers_last_batch(self, objects: ObjectStore) -> None:
        checkpoint(objects, None)
        write_numbered_checkpoint(objects, 1, 5)
        PipelineHome(objects, "games").generations.retire_checkpoint()

        renewed = checkpoint(objects, 4, {"seq": 16})

        assert renewed.current == CheckpointRecord(ordinal=2, first_batch=5, start={"seq": 16})
        assert checkpoint(objects, 4, {"seq": 16}) == renewed

    def test_a_checkpoint_without_batches_is_replaced_at_the_same_start(self, local_objects: LocalObjects) -> None:
        checkpoint(local_objects, None)
        PipelineHome(local_objects, "games").generations.retire_checkpoint()
        assert checkpoint(local_objects, None).current == CheckpointRecord(ordinal=2, first_batch=0, start=None)

        write_numbered_checkpoint(local_objects, 2, 3)
        PipelineHome(local_objects, "games").generations.retire_checkpoint()
        renewed = checkpoint(local_objects, 2, {"seq": 14})
        PipelineHome(local_objects, "games").generations.retire_checkpoint()

        assert renewed.current == CheckpointRecord(ordinal=3, first_batch=3, start={"seq": 14})
        assert checkpoint(local_objects, 2, {"seq": 14}).current == CheckpointRecord(
            ordinal=4, first_batch=3, start={"seq": 14}
        )

    def test_an_unknown_start_is_an_error(self, local_objects: LocalObjects) -> None:
        checkpoint(local_objects, None)
        PipelineHome(local_objects, "games").generations.retire_checkpoint()

        with pytest.raises(ContractError, match="LEDGER_WITHOUT_OFFSET"):
            checkpoint(local_objects, 4, None)


def test_a_lost_record_is_recreated_with_an_unused_checkpoint(objects: ObjectStore) -> None:
    checkpoint(objects, None)
    write_numbered_checkpoint(objects, 1, 3)
    write_numbered_checkpoint(objects, 2, 3)
    objects.delete(paths.pipeline_control("games", "generations.json"))

    renewed = checkpoint(objects, 5, {"seq": 30})

    assert renewed.current == CheckpointRecord(ordinal=3, first_batch=6, start={"seq": 30})


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
