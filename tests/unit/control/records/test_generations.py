"""Spark's batch numbers map to ours, also after a lost checkpoint."""

from __future__ import annotations

import json

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.control.records.generations import (
    CheckpointRecord,
    Generations,
)
from deltaworks.errors import ConcurrencyError, ContractError, TransientError

OFFSETS_OF_SPARK = 'v1\n{"batchWatermarkMs":0}\n{"seq": 12, "files": 3}\n'


def write_checkpoint(objects: ObjectStore, ordinal: int, batches: int) -> None:
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
    write_checkpoint(objects, 1, 5)

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
    write_checkpoint(objects, 2, 3)
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
    write_checkpoint(objects, 1, 2)

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
        write_checkpoint(objects, 1, 5)
        PipelineHome(objects, "games").generations.retire_checkpoint()

        renewed = checkpoint(objects, 4, {"seq": 16})

        assert renewed.current == CheckpointRecord(ordinal=2, first_batch=5, start={"seq": 16})
        assert checkpoint(objects, 4, {"seq": 16}) == renewed

    def test_a_checkpoint_without_batches_is_replaced_at_the_same_start(self, local_objects: LocalObjects) -> None:
        checkpoint(local_objects, None)
        PipelineHome(local_objects, "games").generations.retire_checkpoint()
        assert checkpoint(local_objects, None).current == CheckpointRecord(ordinal=2, first_batch=0, start=None)

        write_checkpoint(local_objects, 2, 3)
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
    write_checkpoint(objects, 1, 3)
    write_checkpoint(objects, 2, 3)
    objects.delete(paths.pipeline_control("games", "generations.json"))

    renewed = checkpoint(objects, 5, {"seq": 30})

    assert renewed.current == CheckpointRecord(ordinal=3, first_batch=6, start={"seq": 30})
