"""Enhanced fan-out over the network: consumers, subscriptions that end, are refused, taken over or cut off, idle
shards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shard_pages import PolledPages, PushedPages, ShardPages
from deltaworks.sources.kinesis.stream_api import ShardNotFound, register_and_wait
from deltaworks.specs.storage import AwsSpec
from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import switched
from tests.unit.sources.kinesis.engine_model import Engine
from tests.unit.sources.kinesis.stream_model import MemoryObjects, ModelStream, options, shard_id

A = shard_id(0)
FAN_OUT = {"consumerMode": "fan_out", "consumerName": "games"}


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoKinesis]:
    monkeypatch.setenv("KEY", "testing")
    with switched(takeover_seconds=0.3, heartbeat_seconds=0.2) as found:
        yield found


@pytest.fixture
def stream(endpoint: str, name: str) -> KinesisStream:
    return KinesisStream(AwsSpec(endpoint=endpoint, access_key="env:KEY", secret_key="env:KEY"), name=name)


def put(raw: Any, name: str, *texts: str) -> None:
    raw.put_records(StreamName=name, Records=[{"Data": text.encode(), "PartitionKey": text} for text in texts])


def pushed(stream: KinesisStream, start: Position | None = None, *, consumer: str = "games") -> PushedPages:
    return PushedPages(stream, A, start or Position(), consumer=register_and_wait(stream, consumer).arn)


def all_of(pages: ShardPages, count: int) -> list[str]:
    """The next `count` records, and no more."""
    found: list[str] = []
    while len(found) < count:
        found += [data.decode() for data in pages.next_page(100, retry_seconds=20).data]
    assert len(found) == count
    return found


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def test_pushed_records_equal_polled_ones(stream: KinesisStream, raw: Any, name: str) -> None:
    raw.put_record(StreamName=name, Data=b"\x00\xff{}", PartitionKey="ключ")
    put(raw, name, "a", "b")

    page, polled = pushed(stream).next_page(10), PolledPages(stream, A, Position()).next_page(10)

    columns = ("sequence_numbers", "partition_keys", "data", "arrivals_us", "behind_ms")
    assert [getattr(page, column) for column in columns] == [getattr(polled, column) for column in columns]
    assert len(page) == 3


def test_a_consumer_is_registered_once_and_waited_for(stream: KinesisStream, raw: Any, switches: MotoKinesis) -> None:
    switches.creating_seconds = 3600.0
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        switches.creating_seconds = 0.0 if len(waits) == 3 else switches.creating_seconds

    first = register_and_wait(stream, "games", sleep=wait)

    assert len(waits) == 3
    assert register_and_wait(stream, "games", sleep=wait) == first
    assert [
        each["ConsumerName"] for each in raw.list_stream_consumers(StreamARN=stream.summary().arn)["Consumers"]
    ] == ["games"]
    stream.register_consumer("games")  # as a driver does that was overtaken
    assert len(stream.consumers()) == 1
    assert len(waits) == 3


def test_a_consumer_that_does_not_become_active_is_reported(stream: KinesisStream, switches: MotoKinesis) -> None:
    switches.creating_seconds = 3600.0

    with pytest.raises(TransientError, match=r"KINESIS_CONSUMER_NOT_READY.*is CREATING"):
        register_and_wait(stream, "games", timeout_seconds=3, sleep=lambda seconds: None)


def test_the_consumer_limit_of_a_stream_is_reported(
    stream: KinesisStream, switches: MotoKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaworks.sources.kinesis import client

    monkeypatch.setattr(client, "_REGISTER_RETRY_SECONDS", 0.2)
    switches.max_consumers = 0

    with pytest.raises(ConfigError, match="KINESIS_CONSUMER_LIMIT"):
        register_and_wait(stream, "games")


def test_an_expired_subscription_is_followed_by_another(
    stream: KinesisStream, raw: Any, name: str, switches: MotoKinesis
) -> None:
    switches.subscription_seconds = 0.4
    put(raw, name, *numbers(0, 5))
    pages = pushed(stream)
    assert all_of(pages, 5) == numbers(0, 5)
    for _ in range(4):
        assert len(pages.next_page(10)) == 0
    put(raw, name, *numbers(5, 8))

    assert all_of(pages, 3) == numbers(5, 8)
    assert switches.subscriptions >= 2
    pages.close()


def test_a_shard_that_was_just_subscribed_to_is_waited_for(
    stream: KinesisStream, raw: Any, name: str, switches: MotoKinesis
) -> None:
    put(raw, name, "a")
    switches.takeover_seconds = 3600.0
    first = pushed(stream)
    assert all_of(first, 1) == ["a"]
    first.close()

    def let_in_after_a_refusal() -> None:
        while not switches.rejected_subscriptions:
            time.sleep(0.01)
        switches.takeover_seconds = 0.0

    threading.Thread(target=let_in_after_a_refusal, daemon=True).start()
    assert all_of(pushed(stream), 1) == ["a"]
    assert switches.rejected_subscriptions > 0


def test_beyond_the_retry_time_it_is_a_transient_error(stream: KinesisStream, switches: MotoKinesis) -> None:
    switches.takeover_seconds = 3600.0
    arn = register_and_wait(stream, "games").arn
    stream.subscribe(arn, A, Position()).close()

    with pytest.raises(TransientError, match=r"KINESIS_UNREACHABLE.*KINESIS_CONSUMER_BUSY"):
        stream.subscribe(arn, A, Position(), retry_seconds=0.5)


def test_readers_that_take_over_a_shard_from_each_other_lose_and_repeat_nothing(
    stream: KinesisStream, raw: Any, name: str, switches: MotoKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    switches.records_per_event = 1
    put(raw, name, *numbers(0, 6))
    first = pushed(stream)
    assert all_of(first, 2) == ["0", "1"]
    time.sleep(switches.takeover_seconds)
    second = pushed(stream)
    assert all_of(second, 3) == ["0", "1", "2"]

    # What was on its way when it was taken over still comes.
    assert all_of(first, 4) == ["2", "3", "4", "5"]
    assert all_of(second, 3) == ["3", "4", "5"]
    put(raw, name, "6")
    assert all_of(first, 1) == ["6"]
    assert "A consumer serves one query" in caplog.text


def test_a_truncated_event_is_pushed_again(stream: KinesisStream, raw: Any, name: str, switches: MotoKinesis) -> None:
    switches.records_per_event = 2
    put(raw, name, "0", "1")
    pages = pushed(stream)
    assert all_of(pages, 2) == ["0", "1"]
    switches.subscriptions_to_abort = 2
    put(raw, name, *numbers(2, 6))

    assert all_of(pages, 4) == ["2", "3", "4", "5"]
    assert switches.subscriptions >= 2


def test_a_removed_consumer_is_reported_and_registered_by_the_next_start(stream: KinesisStream) -> None:
    pages = pushed(stream)
    pages.next_page(10)
    gone = stream.consumer("games")
    stream.register_consumer("another")
    stream.deregister_consumer("games")

    with pytest.raises(TransientError, match="KINESIS_CONSUMER_REMOVED"):
        all_of(pages, 1)

    assert [each.name for each in stream.consumers()] == ["another"]
    assert register_and_wait(stream, "games") != gone


def test_missing_streams_and_shards_are_distinguished(
    endpoint: str, stream: KinesisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.core.exceptions import JsonRESTError

    from sandbox.servers import moto_fan_out

    arn = register_and_wait(stream, "games").arn
    with pytest.raises(ShardNotFound):
        stream.subscribe(arn, shard_id(9), Position())

    def refused(*_: Any) -> int:
        raise JsonRESTError("InvalidArgumentException", "StartingSequenceNumber is invalid.")

    monkeypatch.setattr(moto_fan_out, "number_before", refused)
    with pytest.raises(ContractError, match="KINESIS_POSITION_INVALID"):
        stream.subscribe(arn, A, Position(after="1"))


def engine_on(stream: Any, root: Path, **more: str) -> Engine:
    return Engine(stream, LocalObjects(root), options(**FAN_OUT, **more))  # type: ignore[arg-type]


def test_idle_shards_of_a_resharded_stream_end_a_batch_immediately(
    stream: KinesisStream, raw: Any, name: str, switches: MotoKinesis, tmp_path: Path
) -> None:
    """An idle parent, an idle child and one with a record; an event without records comes only after a while."""
    switches.immediate_first_event = False
    switches.takeover_seconds = 0.0
    raw.split_shard(StreamName=name, ShardToSplit=A, NewStartingHashKey=str(1 << 127))
    raw.put_record(StreamName=name, Data=b"a", PartitionKey="a", ExplicitHashKey="0")
    engine = engine_on(stream, tmp_path)
    began = time.monotonic()

    assert [row.data for row in engine.drain()] == [b"a"]

    assert time.monotonic() - began < 10
    assert [(batch, end.closed, end.has_more) for batch, end in ends(engine, A)] == [(0, True, False)]
    assert [(end.rows, end.has_more, end.behind_ms) for _, end in ends(engine, shard_id(2))] == [(0, False, 0)]


def ends(engine: Engine, shard: str) -> list[tuple[int, Any]]:
    run = engine.planner.initial_offset().run if not engine.log else engine.log[-1]["run"]
    found = [(batch, engine.state.shard_range_end(run, batch, shard)) for batch in range(len(engine.log))]
    return [(batch, end) for batch, end in found if end is not None]


def test_a_range_without_records_that_outlasts_a_subscription_is_passed() -> None:
    """Each subscription ends before it comes to the record: only where the last one got to leads there."""
    model = ModelStream()
    model.put("a", b"first")
    model._number += 1_000_000
    model.put("a", b"second")
    model.put("a", b"third")
    model.page_records, model.scanned_per_event, model.events_per_subscription = 1, 30_000, 2
    engine = Engine(model, MemoryObjects(), options(maxRecords="1", **FAN_OUT))

    assert [row.data for row in engine.drain(most=20)] == [b"first", b"second", b"third"]
    assert model.subscriptions > 15


@pytest.mark.parametrize("first", ["polling", "fan_out"])
def test_a_batch_is_the_same_in_either_mode_and_a_query_can_change_it(
    stream: KinesisStream, raw: Any, switches: MotoKinesis, tmp_path: Path, first: str
) -> None:
    switches.takeover_seconds, name = 0.0, stream.name
    put(raw, name, *numbers(0, 40))
    raw.split_shard(StreamName=name, ShardToSplit=A, NewStartingHashKey=str(1 << 127))
    put(raw, name, *numbers(40, 80))
    modes = {mode: options(maxRecords="30", consumerMode=mode, consumerName="games") for mode in ("polling", "fan_out")}
    engine = engine_on(stream, tmp_path)
    other = {"polling": "fan_out", "fan_out": "polling"}
    mode, more = first, iter(range(80, 90))
    for _ in range(40):
        engine.options = modes[mode]
        engine.restart()
        if engine.open_batch is None and not engine.plan():
            break
        rows = engine.action()
        if (number := next(more, None)) is not None:
            put(raw, name, str(number))
        mode = other[mode]
        engine.options = modes[mode]
        engine.restart()
        assert engine.action() == rows
        engine.complete(rows)

    read = [int(row.data) for row in engine.rows()]
    assert sorted(read) == list(range(90))
    assert read[:40] == list(range(40)), "the parent before its children"
    assert switches.subscriptions > 0


def test_a_throttled_probe_starts_a_batch_if_tasks_have_their_own_throughput() -> None:
    model = ModelStream()
    engine = Engine(model, MemoryObjects(), options(**FAN_OUT))
    model.put("a", b"first")
    engine.drain()
    model.put("a", b"second")
    model.refuse_next_reads = 1

    assert engine.plan()
    assert [row.data for row in engine.action()] == [b"second"]
