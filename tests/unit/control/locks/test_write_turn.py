"""Write turns: granted between batches, kept by renewal, lost by silence, held by one job at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import PendingRequests, TurnRecord, WriteTurnServer, write_turn
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.errors import ConcurrencyError
from deltaworks.testing import present
from tests.waiting import PATIENCE_SECONDS, eventually

KEY = paths.turn_request("shop", "orders")
FAST = {"by": "tests", "poll_seconds": 0.02, "ttl_seconds": 600.0, "wait_seconds": PATIENCE_SECONDS}


class Clock:
    """A monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record_of(objects: ObjectStore) -> TurnRecord | None:
    found = objects.get(KEY)
    return TurnRecord.decode_or_none(found.data) if found else None


@contextmanager
def stream(objects: ObjectStore, server: WriteTurnServer) -> Iterator[list[PendingRequests]]:
    """A stream that holds its lease and grants requested turns."""
    lease = Lease(objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=30, name="shop")
    lease.acquire(wait_seconds=1)
    ended, seen = threading.Event(), []

    def serve() -> None:
        while not ended.wait(0.02):
            requests = server.read_requests()
            seen.append(requests)
            for turn in requests.turns.values():
                if turn.state == "requested":
                    server.grant(turn)
            for table in requests.ended:
                server.remove_ended_turn(table)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
        lease.release()


def test_the_stream_grants_the_turn_and_sees_it_end(objects: ObjectStore) -> None:
    with stream(objects, WriteTurnServer(objects, "shop", granted_by="epoch 1")) as seen:
        with write_turn(objects, "shop", "orders", **FAST) as turn:
            turn.check()
            assert turn.record.granted_by == "epoch 1"
            assert record_of(objects).state == "granted"
        eventually(lambda: objects.get(KEY) is None, "the stream forgets the turn")

    assert any(requests.turns for requests in seen)


def test_without_a_stream_the_job_grants_itself_the_turn_and_a_starting_stream_sees_it(
    local_objects: LocalObjects,
) -> None:
    with write_turn(local_objects, "shop", "orders", **FAST) as turn:
        assert "no stream" in turn.record.granted_by
        requests = WriteTurnServer(local_objects, "shop", granted_by="epoch 2").read_requests()
        assert requests.turns["orders"].state == "granted"

    assert WriteTurnServer(local_objects, "shop", granted_by="epoch 2").read_requests().turns == {}


def test_a_job_does_not_grant_itself_the_turn_while_a_stream_runs(local_objects: LocalObjects) -> None:
    lease = Lease(local_objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=30, name="shop")
    lease.acquire(wait_seconds=1)

    with pytest.raises(ConcurrencyError, match="TURN_NOT_GRANTED"):  # noqa: SIM117
        with write_turn(local_objects, "shop", "orders", **{**FAST, "wait_seconds": 0.3}):
            raise AssertionError("the turn was had")

    lease.release()
    assert record_of(local_objects).state == "released"


def test_one_job_at_a_time_holds_the_turn(objects: ObjectStore) -> None:
    inside, most, done = [0], [0], []
    lock = threading.Lock()

    def job(number: int) -> None:
        with write_turn(objects, "shop", "orders", **FAST):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            with lock:
                inside[0] -= 1
            done.append(number)

    with stream(objects, WriteTurnServer(objects, "shop", granted_by="epoch 1")):
        jobs = [threading.Thread(target=job, args=(number,)) for number in range(5)]
        for each in jobs:
            each.start()
        for each in jobs:
            each.join()

    assert sorted(done) == list(range(5))
    assert most == [1]


def test_a_turn_is_renewed_beyond_its_time_to_live(local_objects: LocalObjects) -> None:
    clock = Clock()
    server = WriteTurnServer(local_objects, "shop", granted_by="epoch 1", clock=clock)
    with (
        stream(local_objects, server) as seen,
        write_turn(local_objects, "shop", "orders", **{**FAST, "ttl_seconds": 0.5}) as turn,
    ):
        # The stream's clock advances with each renewal it has seen: by half a time to live or more, by less than one.
        for _ in range(4):
            beat = turn.record.renewal
            eventually(lambda beat=beat: seen[-1].turns["orders"].renewal > beat, "the stream sees a renewal")
            clock.now += 0.3
        turn.check()
        assert record_of(local_objects).state == "granted"


def write_turn_record(objects: ObjectStore, state: str = "requested", **changes: object) -> TurnRecord:
    fields = {
        "table": "orders",
        "turn": "t",
        "reason": "write_turn",
        "state": state,
        "by": "tests",
        "run": "manual",
        "renewal": 0,
        "ttl_seconds": 30.0,
        "max_turn_seconds": 600.0,
        "requested_at": "",
    }
    record = TurnRecord(**{**fields, **changes})  # type: ignore[arg-type]
    objects.put(KEY, record.encode())
    return record


@pytest.mark.parametrize("state", ["requested", "granted"])
def test_a_holder_that_is_silent_for_its_time_to_live_loses_the_turn(local_objects: LocalObjects, state: str) -> None:
    clock = Clock()
    write_turn_record(local_objects, state)
    server = WriteTurnServer(local_objects, "shop", granted_by="epoch 1", clock=clock)

    assert "orders" in server.read_requests().turns
    clock.now = 29.0
    assert "orders" in server.read_requests().turns
    clock.now = 30.0
    assert server.read_requests() == PendingRequests((), {}, ("orders",))
    assert record_of(local_objects).state == "revoked"


def test_a_turn_is_revoked_after_its_maximum_time(local_objects: LocalObjects) -> None:
    clock = Clock()
    server = WriteTurnServer(local_objects, "shop", granted_by="epoch 1", clock=clock, max_turn_seconds=100)

    for beat in range(10):
        clock.now = beat * 10.0
        write_turn_record(local_objects, "granted", renewal=beat)
        assert "orders" in server.read_requests().turns
    clock.now = 100.0
    write_turn_record(local_objects, "granted", renewal=10)

    assert server.read_requests().ended == ("orders",)
    assert "lasted 100 s" in record_of(local_objects).message


def test_a_holder_detects_that_its_turn_was_revoked(local_objects: LocalObjects) -> None:
    server = WriteTurnServer(local_objects, "shop", granted_by="epoch 1", max_turn_seconds=0.3)

    with (
        stream(local_objects, server),
        write_turn(local_objects, "shop", "orders", **{**FAST, "ttl_seconds": 0.4}) as turn,
    ):
        eventually(lambda: turn.is_lost, "the holder finds out")
        with pytest.raises(ConcurrencyError, match="TURN_LOST"):
            turn.check()


def test_the_turn_of_a_dead_job_goes_to_the_next(local_objects: LocalObjects) -> None:
    write_turn_record(local_objects, "granted", turn="gone", ttl_seconds=0.3)

    with write_turn(local_objects, "shop", "orders", **FAST) as turn:
        assert turn.record.turn != "gone"


def test_a_damaged_turn_is_replaced(local_objects: LocalObjects) -> None:
    local_objects.put(KEY, b"{")

    with write_turn(local_objects, "shop", "orders", **FAST) as turn:
        turn.check()
        found = local_objects.get(KEY)

    assert found is not None
    kept = present(TurnRecord.decode_or_none(found.data))
    assert (kept.turn, kept.state) == (turn.record.turn, "granted")


def test_a_refused_turn_has_a_reason(local_objects: LocalObjects) -> None:
    server = WriteTurnServer(local_objects, "shop", granted_by="epoch 1")
    lease = Lease(local_objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=30, name="shop")
    lease.acquire(wait_seconds=1)

    def refuse() -> None:
        while not (turns := server.read_requests().turns):
            time.sleep(0.02)
        server.refuse(turns["orders"], "there is no such table")

    thread = threading.Thread(target=refuse)
    thread.start()
    with pytest.raises(ConcurrencyError, match="there is no such table"):  # noqa: SIM117
        with write_turn(local_objects, "shop", "orders", **FAST):
            raise AssertionError("the turn was had")
    thread.join()
    lease.release()
