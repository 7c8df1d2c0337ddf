"""A prepared batch is decided by its first writer."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.errors import ContractError

FILE = {"path": "event_date=2024-01-01/part-1.parquet", "size": 3, "rows": 2, "partition": {"p": None}, "stats": "{}"}


def batch(owner: str = "a", batch_id: int = 42) -> PreparedBatch:
    return PreparedBatch(
        pipeline="games",
        generation=1,
        batch_id=batch_id,
        spark_batch_id=2,
        checkpoint=1,
        owner=owner,
        owner_epoch=3,
        run="manual",
        prepared_at="2024-01-01T00:00:00.000+00:00",
        ingested_at_us=1_700_000_000_000_000,
        spec_fingerprint="f",
        code_version="0.1.0",
        offsets={"start": None, "end": {"seq": 7}},
        source={"files": 1, "bytes": 10},
        tables=(
            PreparedTable(table="events", writer="fan_out", rows=2, files=(FILE,)),
            PreparedTable(table="quarantine", writer="fan_out", rows=1, files=(FILE,)),
        ),
    )


def test_a_batch_is_read_as_it_was_prepared(objects: ObjectStore) -> None:
    assert PipelineHome(objects, "games").prepared.read(1, 42) is None

    assert PipelineHome(objects, "games").prepared.get_or_create(batch()) == batch()

    read = PipelineHome(objects, "games").prepared.read(1, 42)
    assert read == batch()
    assert (read.rows, read.quarantined) == (2, 1)


def test_the_second_to_prepare_gets_the_batch_of_the_first(objects: ObjectStore) -> None:
    PipelineHome(objects, "games").prepared.get_or_create(batch("first"))

    assert PipelineHome(objects, "games").prepared.get_or_create(batch("second")).owner == "first"


def test_two_concurrent_drivers_end_with_one_content(local_objects: LocalObjects) -> None:
    barrier = threading.Barrier(2)

    def one(owner: str, batch_id: int) -> PreparedBatch:
        barrier.wait()
        return PipelineHome(local_objects, "games").prepared.get_or_create(batch(owner, batch_id))

    with ThreadPoolExecutor(2) as pool:
        for batch_id in range(30):
            got = list(pool.map(one, ("a", "b"), (batch_id, batch_id)))
            assert got[0] == got[1] == PipelineHome(local_objects, "games").prepared.read(1, batch_id)


def test_preparing_again_after_a_lost_reply_finds_the_own_batch(faulty_objects) -> None:
    faulty_objects.lose_reply = lambda call: call == "put_if_absent"
    with pytest.raises(Exception, match="lost"):
        PipelineHome(faulty_objects, "games").prepared.get_or_create(batch("mine"))
    faulty_objects.lose_reply = lambda call: False

    assert PipelineHome(faulty_objects, "games").prepared.get_or_create(batch("mine")) == batch("mine")


def _record(**changes: object) -> bytes:
    return json.dumps({**batch().model_dump(), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        batch().encode()[:-20],
        _record(format=2),
        _record(of_tomorrow=1),
        _record(tables=[{"table": "t"}]),
        _record(tables=7),
        b"\xff\xfe",
    ],
    ids=["empty", "torn", "list", "no keys", "cut", "other format", "unknown key", "table", "tables", "no text"],
)
def test_an_invalid_prepared_batch_is_rejected_with_its_key(local_objects: LocalObjects, data: bytes) -> None:
    local_objects.put(paths.prepared_batch("games", 1, 42), data)

    with pytest.raises(ContractError) as caught:
        PipelineHome(local_objects, "games").prepared.read(1, 42)

    assert caught.value.condition == "PREPARED_BATCH_UNREADABLE"
    assert "prepared/g000001/000000000042.json" in caught.value.message
