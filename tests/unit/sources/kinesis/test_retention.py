"""Positions older than the retention: a possible loss stops the query or is recorded as a gap."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deltaworks.errors import ContractError
from tests.unit.sources.kinesis.engine_model import Engine, engine_on, put, read
from tests.unit.sources.kinesis.stream_model import ModelStream, options, shard_id

HOURS = timedelta(hours=1)


def restarted(engine: Engine, **changes: str) -> Engine:
    engine.options = options(**changes)
    engine.restart()
    return engine


def test_a_stop_that_outlasts_the_retention_fails_with_shard_and_range(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a", "b")
    assert read(engine) == ["a", "b"]
    last = stream.all[0].records[-1]
    put(stream, "lost")
    stream.tick(25 * HOURS)
    put(stream, "c")
    first = stream.all[0].records[0]
    engine.restart()

    with pytest.raises(ContractError, match="KINESIS_POSITION_EXPIRED") as stopped:
        engine.drain()

    assert shard_id(0) in stopped.value.message
    assert str(last.number) in stopped.value.message
    assert str(first.number) in stopped.value.message
    assert "24 h" in stopped.value.message
    assert engine.state.gaps() == []


def test_if_loss_is_allowed_the_gap_is_recorded_and_reported_and_reading_continues(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a", "b")
    read(engine)
    last = stream.all[0].records[-1]
    put(stream, "lost")
    stream.tick(25 * HOURS)
    put(stream, "c")

    assert read(restarted(engine, allowDataLoss="true")) == ["c"]

    (gap,) = engine.state.gaps()
    assert (gap.shard_id, gap.after) == (shard_id(0), str(last.number))
    assert gap.first == str(stream.all[0].records[0].number)
    report = engine.planner.lag_report()
    assert report is not None
    assert report["gaps"] == 1
    put(stream, "d")
    assert read(engine) == ["d"]
    assert len(engine.state.gaps()) == 1
    assert [row.ordinal for row in engine.rows()] == [0, 1, 2, 3]


def test_a_position_whose_record_is_retained_has_lost_nothing(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    stream.retention = 7 * 24 * HOURS
    stream.tick(100 * HOURS)
    put(stream, "b")
    # The retention is shortened: what is expired by it has not been removed yet.
    stream.retention = 24 * HOURS

    assert read(engine) == ["b"]


def test_an_idle_shard_outlives_its_last_record_while_the_query_runs(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    for _ in range(30):
        stream.tick(1 * HOURS)
        assert not engine.plan()
    put(stream, "b")

    assert read(engine) == ["b"]


@pytest.mark.parametrize("available_now", [False, True])
def test_idle_times_survive_a_restart(stream: ModelStream, available_now: bool) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    for _ in range(30):
        stream.tick(1 * HOURS)
        engine.restart(available_now=available_now)
        assert not engine.plan()
    engine.restart()
    put(stream, "b")

    assert read(engine) == ["b"]


def test_a_child_that_may_have_lost_its_first_records_is_detected(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    stream.split(0)
    engine.plan()
    engine.complete(engine.action())
    put(stream, "lost")
    stream.tick(23 * HOURS)
    put(stream, "c")
    stream.tick(2 * HOURS)
    engine.restart()

    with pytest.raises(ContractError, match=r"KINESIS_POSITION_EXPIRED.*after its beginning"):
        engine.drain()


def test_a_shard_that_expired_unread_is_detected_and_its_children_continue_if_allowed(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    put(stream, "lost")
    stream.split(0)
    stream.tick(25 * HOURS)
    put(stream, "c")
    assert shard_id(0) not in [shard.shard_id for shard in stream.shards()]
    engine.restart()
    with pytest.raises(ContractError, match=r"KINESIS_POSITION_EXPIRED.*no longer exists"):
        engine.drain()

    assert read(restarted(engine, allowDataLoss="true")) == ["c"]
    # Its children were not begun in time either: what they held in between may be gone too.
    gaps = {gap.shard_id: gap.is_shard_missing for gap in engine.state.gaps()}
    assert gaps == {shard_id(0): True, shard_id(1): False, shard_id(2): False}


def test_a_replay_whose_first_records_expired_keeps_the_ordinals_of_the_rest(stream: ModelStream) -> None:
    engine = engine_on(stream, maxRecords="10")
    put(stream, "a", "b")
    read(engine)
    put(stream, "c")
    stream.tick(20 * HOURS)
    put(stream, "d", "e")
    engine.plan()
    assert [row.data for row in engine.action()] == [b"c", b"d", b"e"]
    stream.tick(5 * HOURS)
    engine.restart()
    with pytest.raises(ContractError, match="KINESIS_POSITION_EXPIRED"):
        engine.action()

    rows = restarted(engine, allowDataLoss="true").action()

    assert [(row.data, row.ordinal) for row in rows] == [(b"d", 3), (b"e", 4)]
    assert len(engine.state.gaps()) == 1


def test_trim_horizon_reads_retained_records_and_reports_no_loss(stream: ModelStream) -> None:
    put(stream, "expired")
    stream.tick(25 * HOURS)
    put(stream, "a")

    assert read(engine_on(stream)) == ["a"]


def test_a_timestamp_before_the_retention_is_a_loss(stream: ModelStream) -> None:
    begin = stream.now().isoformat()
    put(stream, "expired")
    stream.tick(25 * HOURS)
    put(stream, "a")

    with pytest.raises(ContractError, match="KINESIS_POSITION_EXPIRED"):
        engine_on(stream, initialPosition="at_timestamp", initialTimestamp=begin).drain()
