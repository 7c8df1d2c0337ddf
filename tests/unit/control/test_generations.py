"""Spark's batch numbers and ours, also after its checkpoint is lost."""

from __future__ import annotations

import json

import pytest

from deltaworks.control import paths
from deltaworks.control.generations import CheckpointRecord, Generations, current_checkpoint, read_end_offset
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.errors import ConcurrencyError

OFFSETS_OF_SPARK = 'v1\n{"batchWatermarkMs":0}\n{"seq": 12, "files": 3}\n'


def write_checkpoint(objects: ObjectStore, ordinal: int, batches: int) -> None:
    folder = paths.checkpoint("games", 1, ordinal)
    objects.put(f"{folder}/metadata", b"{}")
    for number in range(batches):
        objects.put(f"{folder}/offsets/{number}", OFFSETS_OF_SPARK.replace("12", str(12 + number)).encode())


def checkpoint(objects: ObjectStore, last: int | None, end: dict[str, int] | None = None) -> Generations:
    return current_checkpoint(objects, "games", last_completed=last, end_offset=end)


def test_a_new_pipeline_starts_at_batch_zero(objects: ObjectStore) -> None:
    first = checkpoint(objects, None)

    assert first == Generations(1, (CheckpointRecord(1, 0, None),))
    assert checkpoint(objects, None) == first


def test_a_checkpoint_that_is_there_is_used_on(objects: ObjectStore) -> None:
    first = checkpoint(objects, None)
    write_checkpoint(objects, 1, 5)

    assert checkpoint(objects, 4, {"seq": 16}) == first


def test_a_lost_checkpoint_is_followed_by_one_that_goes_on_after_the_ledgers_last_batch(objects: ObjectStore) -> None:
    checkpoint(objects, None)

    renewed = checkpoint(objects, 4, {"seq": 16})

    assert renewed.current == CheckpointRecord(ordinal=2, first_batch=5, start={"seq": 16})
    assert renewed.generation == 1
    assert checkpoint(objects, 4, {"seq": 16}) == renewed
    assert paths.checkpoint("games", 1, renewed.current.ordinal).endswith("g000001/c0002")


def test_a_checkpoint_can_be_lost_again_and_again(objects: ObjectStore) -> None:
    checkpoint(objects, None)
    checkpoint(objects, 4, {"seq": 16})
    write_checkpoint(objects, 2, 3)
    assert checkpoint(objects, 7, {"seq": 30}).current.ordinal == 2

    objects.delete(f"{paths.checkpoint('games', 1, 2)}/metadata")
    renewed = checkpoint(objects, 7, {"seq": 30})

    assert renewed.current == CheckpointRecord(ordinal=3, first_batch=8, start={"seq": 30})
    assert len(renewed.checkpoints) == 3


def test_a_checkpoint_without_a_batch_of_its_own_is_not_taken_for_lost(objects: ObjectStore) -> None:
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

    assert read_end_offset(objects, "games", generations, 1) == {"seq": 13, "files": 3}
    assert read_end_offset(objects, "games", generations, 2) is None


def test_a_record_survives_json() -> None:
    generations = Generations(2, (CheckpointRecord(1, 0, None), CheckpointRecord(2, 5, {"seq": 1})))

    assert json.loads(generations.encode())["checkpoints"][1] == {"ordinal": 2, "first_batch": 5, "start": {"seq": 1}}
