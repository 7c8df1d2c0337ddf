"""Races between attempts, drivers and expiries, one by one."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from deltaworks.errors import ConfigError, ContractError
from deltaworks.sources.kinesis.positions import Position, ShardRange, ShardRangeEnd
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, refetch
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.testing import present
from tests.unit.sources.kinesis.engine_model import Engine, Row
from tests.unit.sources.kinesis.stream_model import MemoryObjects, ModelStream, options


@pytest.fixture
def engine(stream: ModelStream) -> Engine:
    return Engine(stream, MemoryObjects(), options())


def put(stream: ModelStream, begin: int, end: int) -> None:
    for number in range(begin, end):
        stream.put("a", f"{number}".encode())


def data(rows: list[Row]) -> list[int]:
    return [int(row.data) for row in rows]


class RivalState(QueryState):
    """Before this attempt can fix its end, another attempt that saw less or more fixes another one."""

    def __init__(self, objects: MemoryObjects, rival: Any) -> None:
        super().__init__(objects)
        self.rival = rival

    def record_shard_range_end(self, shard_range: ShardRange, end: ShardRangeEnd) -> ShardRangeEnd:
        self.rival(shard_range)
        return super().record_shard_range_end(shard_range, end)


@pytest.mark.parametrize("rival_saw_more", [True, False])
def test_a_losing_attempt_delivers_the_share_that_the_winner_stored(
    stream: ModelStream, engine: Engine, rival_saw_more: bool
) -> None:
    put(stream, 0, 10)
    engine.plan()
    assert engine.open_batch is not None
    (shard_range,) = engine.planner.shard_ranges(engine.open_batch)
    won: list[Row] = []

    def rival(shard_range: ShardRange) -> None:
        if won:
            return
        limits = shard_range.limits if rival_saw_more else replace(shard_range.limits, rows=4)
        if rival_saw_more:
            put(stream, 10, 15)
        engine.state = plain
        won.extend(engine.read(replace(shard_range, limits=limits)))

    plain = engine.state
    engine.state = RivalState(engine.objects, rival)  # type: ignore[assignment]
    loser = engine.read(shard_range)

    assert loser == won
    assert data(loser) == list(range(15 if rival_saw_more else 4))


def test_many_concurrent_attempts_agree(stream: ModelStream, engine: Engine) -> None:
    put(stream, 0, 50)
    engine.plan()
    assert engine.open_batch is not None
    (shard_range,) = engine.planner.shard_ranges(engine.open_batch)
    results: list[list[Row]] = []
    barrier = threading.Barrier(6)

    def attempt(rows: int) -> None:
        barrier.wait()
        results.append(engine.read(replace(shard_range, limits=replace(shard_range.limits, rows=rows))))

    threads = [threading.Thread(target=attempt, args=(10 + number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 6
    assert all(result == results[0] for result in results)


def test_an_unread_shard_is_sealed_so_a_late_task_gets_nothing(stream: ModelStream, engine: Engine) -> None:
    put(stream, 0, 10)
    engine.plan()
    assert engine.open_batch is not None
    (late,) = engine.planner.shard_ranges(engine.open_batch)
    engine.complete([])
    engine.plan()

    assert engine.read(late) == []
    rows = engine.action()
    assert data(rows) == list(range(10))
    assert rows[0].ordinal == 0


def test_two_drivers_plan_the_same_batch(stream: ModelStream, engine: Engine) -> None:
    put(stream, 0, 10)
    engine.plan()
    engine.complete(engine.action())
    put(stream, 10, 20)
    other = engine.new_planner()
    theirs = other.next_batch(engine.start())
    # This one would plan another end: it is to stop at what is there by now.
    engine.restart(available_now=True)
    engine.plan()

    assert theirs is not None
    assert engine.log[-1] == theirs.to_json()


def test_an_iterator_that_expires_between_pages_is_replaced_at_the_same_position(
    stream: ModelStream, engine: Engine
) -> None:
    put(stream, 0, 5)
    assert data(engine.drain()) == list(range(5))
    put(stream, 5, 20)
    stream.page_records = 3
    answer, asked = stream.records, 0

    def expiring(iterator: str, limit: int, *, retry_seconds: float = 1.0) -> Any:
        nonlocal asked
        asked += 1
        if asked % 2 == 0:
            stream.expire_iterators()
        return answer(iterator, limit, retry_seconds=retry_seconds)

    stream.records = expiring  # type: ignore[method-assign]
    assert data(engine.drain()) == list(range(5, 20))
    assert asked > 6


def test_a_replay_with_other_records_is_rejected(stream: ModelStream, engine: Engine) -> None:
    put(stream, 0, 10)
    engine.plan()
    engine.action()
    (key,) = [key for key in engine.objects.objects if "/shardId" in key]
    recorded = json.loads(engine.objects.objects[key])
    for field, value in (("rows", 9), ("digest", "0" * 16), ("records", 9), ("start", {"rows": 5})):
        engine.objects.objects[key] = json.dumps({**recorded, field: value}).encode()
        with pytest.raises(ContractError, match="KINESIS_REPLAY_DIFFERS"):
            engine.action()
    engine.objects.objects[key] = json.dumps(recorded).encode()
    assert data(engine.action()) == list(range(10))


def test_a_replay_waits_for_records_missing_in_a_slower_replica(
    stream: ModelStream, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(stream, 0, 10)
    engine.plan()
    engine.action()
    assert engine.open_batch is not None
    (shard_range,) = engine.planner.shard_ranges(engine.open_batch)
    recorded = present(engine.state.shard_range_end(shard_range.run, shard_range.batch, shard_range.shard_id))
    shard = stream.all[0]
    shard.records, hidden = shard.records[:6], shard.records[6:]
    monkeypatch.setattr("time.sleep", lambda seconds: shard.records.extend(hidden) or hidden.clear())

    assert len(refetch(stream, shard_range, recorded, FetchOptions()).rows) == 10


def test_changed_deaggregation_is_detected(stream: ModelStream, engine: Engine) -> None:
    from tests.unit.sources.kinesis.test_record_source import THREE

    stream.put("a", THREE)
    engine.plan()
    assert len(engine.action()) == 3
    engine.options = options(deaggregate="false")

    with pytest.raises(ContractError, match="KINESIS_REPLAY_DIFFERS"):
        engine.action()


def test_a_task_that_cannot_see_the_drivers_state_is_reported(stream: ModelStream, engine: Engine) -> None:
    put(stream, 0, 1)
    engine.plan()
    assert engine.open_batch is not None
    shard_ranges = engine.planner.shard_ranges(engine.open_batch)
    engine.objects.objects.clear()

    with pytest.raises(ConfigError, match="KINESIS_STATE_NOT_SHARED"):
        engine.action(shard_ranges)


def test_records_and_positions_round_trip_through_json() -> None:
    assert Position.from_json(Position(after="1", rows=3).to_json()) == Position(after="1", rows=3)
    end = ShardRangeEnd(start=Position(), end=Position(after="7", rows=2), records=1, rows=2, closed=True)
    assert ShardRangeEnd.from_bytes(end.to_bytes()) == end
