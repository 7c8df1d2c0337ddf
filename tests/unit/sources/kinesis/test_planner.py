"""Where a query begins, continues and idles; startable shards; what the planner rejects, deletes and reports."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.planner import Planner
from deltaworks.sources.kinesis.positions import Offset
from deltaworks.sources.kinesis.shards import Shard, finished_shards_to_retain, row_seq, shard_number, startable_shards
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.records import ORDINAL_BITS, PARTITION_NUMBER_BITS
from deltaworks.testing import present
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
    assert present(engine.planner.lag_report())["millis_behind_latest"] == {shard_id(0): 1}

    engine.drain()
    engine.plan()
    at_tip = present(engine.planner.lag_report())
    assert at_tip["millis_behind_latest"] == {shard_id(0): 0}
    assert at_tip["read_until"].keys() == {shard_id(0)}


def test_offsets_round_trip_through_json() -> None:
    stream = ModelStream(2)
    engine = engine_on(stream, initialPosition="latest")
    begin = engine.planner.initial_offset()

    assert Offset.from_json(begin.to_json()) == begin
    assert QueryState(engine.objects).query() is not None


A, B, C, D = (shard_id(number) for number in range(4))
SPLIT = [Shard(A, closed=True), Shard(B, (A,)), Shard(C, (A,))]
MERGED = [Shard(A, closed=True), Shard(B, closed=True), Shard(C, (A, B))]


def ids(shards: list[Shard]) -> list[str]:
    return [shard.shard_id for shard in shards]


def test_only_shards_without_parents_begin_at_first() -> None:
    assert ids(startable_shards(SPLIT, live=(), finished=())) == [A]
    assert ids(startable_shards(MERGED, live=(), finished=())) == [A, B]


def test_children_begin_when_their_parent_is_finished() -> None:
    assert startable_shards(SPLIT, live=[A], finished=()) == []
    assert ids(startable_shards(SPLIT, live=(), finished=[A])) == [B, C]


def test_a_merged_shard_waits_for_both_parents() -> None:
    assert startable_shards(MERGED, live=[B], finished=[A]) == []
    assert ids(startable_shards(MERGED, live=(), finished=[A, B])) == [C]


def test_a_parent_that_is_no_longer_listed_does_not_block_its_children() -> None:
    assert ids(startable_shards([Shard(B, (A,))], live=(), finished=())) == [B]


def test_a_live_parent_blocks_its_children_although_it_is_not_listed() -> None:
    assert startable_shards([Shard(B, (A,))], live=[A], finished=()) == []


def test_a_shard_with_a_started_descendant_is_never_started_again() -> None:
    """`latest` begins with open shards only, and a forgotten shard can be listed again for a moment."""
    chain = [Shard(A, closed=True), Shard(B, (A,), closed=True), Shard(C, (B,))]
    assert startable_shards(chain, live=[C], finished=()) == []
    assert startable_shards(chain, live=(), finished=[C]) == []


def test_a_sibling_listed_late_is_started_although_the_parent_was_dropped() -> None:
    assert ids(startable_shards(SPLIT, live=[B], finished=())) == [C]


def test_started_shards_are_ordered_by_number_not_by_name() -> None:
    shards = [Shard("shardId-1000000000000"), Shard(B)]
    assert ids(startable_shards(shards, live=(), finished=())) == [B, "shardId-1000000000000"]


def test_a_finished_shard_is_retained_while_it_is_listed_or_has_no_started_child() -> None:
    assert finished_shards_to_retain([A], SPLIT, live=[B, C]) == {A}
    assert finished_shards_to_retain([A], SPLIT[1:], live=[B, C]) == set()
    assert finished_shards_to_retain([A], [], live=()) == {A}
    assert finished_shards_to_retain([A], SPLIT[1:], live=()) == {A}


def test_a_row_seq_grows_along_a_shard_and_from_parent_to_child() -> None:
    seqs = [row_seq(A, 0), row_seq(A, 1), row_seq(A, 10**9), row_seq(B, 0), row_seq(B, 7), row_seq(C, 0)]

    assert seqs == sorted(set(seqs))
    assert seqs[0] >= 0
    assert row_seq(shard_id((1 << PARTITION_NUMBER_BITS) - 1), (1 << ORDINAL_BITS) - 1) == (1 << 63) - 1


@pytest.mark.parametrize(
    ("shard", "ordinal"), [(A, -1), (A, 1 << ORDINAL_BITS), (f"shardId-{1 << PARTITION_NUMBER_BITS:012d}", 0)]
)
def test_a_row_seq_out_of_range_is_rejected(shard: str, ordinal: int) -> None:
    with pytest.raises(ContractError, match="RECORD_SEQ_EXHAUSTED"):
        row_seq(shard, ordinal)


def test_the_number_is_in_the_shards_id() -> None:
    assert shard_number("shardId-000000000012") == 12
    with pytest.raises(ContractError, match="KINESIS_SHARD_UNNUMBERED"):
        shard_number("shard-12")


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
    assert present(engine.planner.lag_report())["gaps"] == 1
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
