"""Where a query begins, continues and idles; what the planner rejects, deletes and reports."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.planner import Planner
from deltaworks.sources.kinesis.positions import Offset
from deltaworks.sources.kinesis.state import QueryState
from tests.unit.sources.kinesis.engine_model import Engine, engine_on, put, read
from tests.unit.sources.kinesis.stream_model import MemoryObjects, ModelStream, options, shard_id


def test_the_initial_offset_is_deterministic(stream: ModelStream) -> None:
    engine = engine_on(stream, initialPosition="latest")
    first = engine.planner.initial_offset()
    stream.tick(timedelta(minutes=5))

    assert engine.planner.initial_offset() == first
    assert engine.new_planner().initial_offset() == first


def test_two_concurrently_started_drivers_are_one_query(stream: ModelStream) -> None:
    objects = MemoryObjects()
    first, second = Engine(stream, objects, options()), Engine(stream, objects, options())

    assert first.planner.initial_offset() == second.planner.initial_offset()


def test_latest_skips_existing_records_and_reads_new_ones_even_without_a_first_batch(
    stream: ModelStream,
) -> None:
    put(stream, "before")
    stream.tick(timedelta(seconds=2))
    engine = engine_on(stream, initialPosition="latest")
    assert not engine.plan()
    put(stream, "while it was down")
    engine.restart()

    assert read(engine) == ["while it was down"]


def test_latest_begins_with_open_shards_only_after_a_reshard(stream: ModelStream) -> None:
    put(stream, "before")
    stream.split(0)
    stream.tick(timedelta(seconds=2))
    engine = engine_on(stream, initialPosition="latest")

    assert set(engine.planner.initial_offset().shards) == {shard_id(1), shard_id(2)}
    put(stream, "after")
    assert read(engine) == ["after"]


def test_a_timestamp_is_exact_although_kinesis_accepts_full_seconds(stream: ModelStream) -> None:
    put(stream, "a", "b")
    begin = stream.all[0].records[1].arrival.isoformat()
    put(stream, "c")
    engine = engine_on(stream, initialPosition="at_timestamp", initialTimestamp=begin)

    assert read(engine) == ["b", "c"]


def test_a_record_in_the_first_second_but_before_the_timestamp_makes_no_endless_batches(stream: ModelStream) -> None:
    put(stream, "a")
    begin = (stream.now() + timedelta(milliseconds=1)).isoformat()
    engine = engine_on(stream, initialPosition="at_timestamp", initialTimestamp=begin)

    assert read(engine) == []
    assert len(engine.log) <= 1
    put(stream, "b")
    assert read(engine) == ["b"]


def test_a_timestamp_applies_to_children_too(stream: ModelStream) -> None:
    stream.split(0)
    put(stream, "before")
    stream.tick(timedelta(minutes=1))
    begin = stream.now().isoformat()
    put(stream, "after")

    assert read(engine_on(stream, initialPosition="at_timestamp", initialTimestamp=begin)) == ["after"]


def test_idling_plans_nothing_and_reads_each_shard_once_a_second(stream: ModelStream) -> None:
    pauses: list[float] = []
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    planner = Planner(stream, engine.state, engine.options, clock=lambda: 100.0, sleep=pauses.append)
    reads = stream.reads
    for _ in range(5):
        assert planner.next_batch(engine.start()) is None

    assert stream.reads - reads == 5
    assert pauses == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert len(engine.log) == 1


def test_an_idle_stream_yields_no_batch_for_available_now(stream: ModelStream) -> None:
    engine = engine_on(stream)
    engine.restart(available_now=True)

    assert read(engine) == []
    assert engine.log == []


def test_limits_are_divided_among_the_shards_and_bounded_for_a_task() -> None:
    stream = ModelStream(4)
    engine = engine_on(stream, maxRecords="10", maxBytes="1GiB", maxSeconds="7")
    put(stream, "a")
    engine.plan()
    assert engine.open_batch is not None
    limits = {shard_range.limits for shard_range in engine.planner.shard_ranges(engine.open_batch)}

    assert [(each.rows, each.size, each.seconds) for each in limits] == [(3, 64 << 20, 7.0)]


def test_a_checkpoint_without_its_state_is_rejected(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    engine.objects.objects.clear()
    engine.restart()

    with pytest.raises(ContractError, match="KINESIS_STATE_LOST"):
        engine.plan()


def test_a_batch_without_a_plan_is_neither_read_nor_continued(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    engine.plan()
    (plan,) = [key for key in engine.objects.objects if key.endswith("/plan.json")]
    del engine.objects.objects[plan]
    engine.restart()

    with pytest.raises(ContractError, match="KINESIS_STATE_LOST"):
        engine.action()
    with pytest.raises(ContractError, match="KINESIS_STATE_LOST"):
        engine.planner.next_batch(engine.start())


def test_a_new_checkpoint_on_the_state_of_an_advanced_query_is_rejected(stream: ModelStream) -> None:
    engine = engine_on(stream)
    for text in ("a", "b", "c"):
        put(stream, text)
        read(engine)
    second = Engine(stream, engine.objects, options())

    with pytest.raises(ContractError, match=r"KINESIS_STATE_OF_ANOTHER_QUERY.*batch 2"):
        second.plan()


def test_a_query_resumes_from_a_given_offset_after_a_lost_checkpoint(stream: ModelStream) -> None:
    engine = engine_on(stream)
    for text in ("a", "b", "c"):
        put(stream, text)
        read(engine)
    put(stream, "d")
    second = Engine(stream, engine.objects, options(startOffset=json.dumps(engine.log[-1])))
    rows = second.drain()

    assert [(row.data, row.ordinal) for row in rows] == [(b"d", 3)]


def test_an_offset_of_another_state_is_rejected(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    elsewhere = engine_on(stream, startOffset=json.dumps(engine.log[-1]))

    with pytest.raises(ContractError, match="KINESIS_STATE_LOST"):
        elsewhere.plan()


def test_a_recreated_stream_is_rejected(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    read(engine)
    stream.created = datetime(2026, 3, 2, tzinfo=UTC)
    engine.restart()

    with pytest.raises(ContractError, match="KINESIS_STREAM_REPLACED"):
        engine.plan()


def test_old_batches_are_deleted_and_the_latest_kept(stream: ModelStream) -> None:
    engine = engine_on(stream, keepBatches="3")
    for number in range(10):
        put(stream, str(number))
        read(engine)
    run = engine.start().run
    left = sorted({int(key.split("/")[1]) for key in engine.objects.objects if key.startswith(f"{run}/0")})

    assert left == [6, 7, 8, 9]
    assert "query.json" in engine.objects.objects
    engine.restart()
    put(stream, "more")
    assert read(engine) == ["more"]


def test_a_failed_cleanup_does_not_end_the_query_and_is_repeated(
    stream: ModelStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(stream, keepBatches="2")
    with monkeypatch.context() as broken:
        broken.setattr(MemoryObjects, "delete", lambda *_: (_ for _ in ()).throw(OSError("storage is away")))
        for number in range(6):
            put(stream, str(number))
            read(engine)
    put(stream, "more")
    read(engine)
    run = engine.start().run

    assert min(int(key.split("/")[1]) for key in engine.objects.objects if key.startswith(f"{run}/0")) >= 4


def test_finished_shards_are_dropped_once_they_are_no_longer_listed(stream: ModelStream) -> None:
    engine = engine_on(stream)
    put(stream, "a")
    stream.split(0)
    put(stream, "b")
    assert read(engine) == ["a", "b"]
    assert set(engine.start().finished) == {shard_id(0)}
    for _ in range(25):
        stream.tick(timedelta(hours=1))
        engine.plan()
    put(stream, "c")
    assert read(engine) == ["c"]

    assert dict(engine.start().finished) == {}


def test_the_report_has_the_lag_of_each_read_shard(stream: ModelStream) -> None:
    engine = engine_on(stream, maxRecords="2")
    assert engine.planner.lag_report() is None
    put(stream, "a", "b", "c")
    engine.plan()
    engine.complete(engine.action())
    engine.plan()
    behind = engine.planner.lag_report()
    assert behind is not None
    assert behind["millis_behind_latest"] == {shard_id(0): 1}

    engine.drain()
    engine.plan()
    at_tip = engine.planner.lag_report()
    assert at_tip is not None
    assert at_tip["millis_behind_latest"] == {shard_id(0): 0}
    assert at_tip["read_until"].keys() == {shard_id(0)}


def test_offsets_round_trip_through_json() -> None:
    stream = ModelStream(2)
    engine = engine_on(stream, initialPosition="latest")
    begin = engine.planner.initial_offset()

    assert Offset.from_json(begin.to_json()) == begin
    assert QueryState(engine.objects).query() is not None
