"""How far a live query has read is what its newest finished batch says."""

from __future__ import annotations

import json

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.live_position import live_read_below

FOLDER = paths.live_checkpoint("games", 1, "live")


def planned(objects: ObjectStore, batch: int, version: int, *, starting: bool = False) -> None:
    offset = {"reservoirVersion": version, "index": -1, "isStartingVersion": starting}
    objects.put(f"{FOLDER}/offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}'.encode())


def finished(objects: ObjectStore, batch: int) -> None:
    objects.put(f"{FOLDER}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def test_a_query_that_has_not_begun_has_read_nothing(objects: ObjectStore) -> None:
    assert live_read_below(objects, "games", "live") == 0


def test_a_batch_that_is_planned_and_not_finished_does_not_count(objects: ObjectStore) -> None:
    planned(objects, 9, 5)
    finished(objects, 9)
    planned(objects, 10, 8)
    assert live_read_below(objects, "games", "live") == 5
    finished(objects, 10)
    assert live_read_below(objects, "games", "live") == 8


def test_a_first_snapshot_under_way_says_nothing(objects: ObjectStore) -> None:
    planned(objects, 0, 3, starting=True)
    finished(objects, 0)
    assert live_read_below(objects, "games", "live") == 0
