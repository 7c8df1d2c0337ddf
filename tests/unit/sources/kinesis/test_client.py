"""Kinesis calls against a corrected moto: responses, retries, expiry, refusals, and the clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.pages import parse_records_body
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shard_pages import PolledPages
from deltaworks.sources.kinesis.shards import Shard
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.kinesis.stream_api import IteratorExpired, ShardNotFound
from deltaworks.specs.storage import AwsSpec
from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import switched
from tests.unit.sources.kinesis.engine_model import Engine
from tests.unit.sources.kinesis.stream_model import options, shard_id

A = shard_id(0)


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoKinesis]:
    monkeypatch.setenv("KEY", "testing")
    with switched() as found:
        yield found


def opened(endpoint: str, name: str, **more: Any) -> KinesisStream:
    return KinesisStream(AwsSpec(endpoint=endpoint, access_key="env:KEY", secret_key="env:KEY"), name=name, **more)


def put(raw: Any, name: str, *texts: str) -> None:
    raw.put_records(StreamName=name, Records=[{"Data": text.encode(), "PartitionKey": "ключ"} for text in texts])


def test_a_page_has_what_boto3_would_give(endpoint: str, raw: Any, name: str) -> None:
    raw.put_record(StreamName=name, Data=b"\x00\xff{}", PartitionKey="ключ")
    stream = opened(endpoint, name)

    page = stream.records(stream.iterator(A, Position()), 10)

    theirs = raw.get_shard_iterator(StreamName=name, ShardId=A, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
    (expected,) = raw.get_records(ShardIterator=theirs)["Records"]
    assert page.data == [expected["Data"]] == [b"\x00\xff{}"]
    assert page.partition_keys == [expected["PartitionKey"]] == ["ключ"]
    assert page.sequence_numbers == [expected["SequenceNumber"]]
    assert page.arrivals_us == [round(expected["ApproximateArrivalTimestamp"].timestamp() * 1e6)]
    assert page.behind_ms == 0


@pytest.mark.parametrize("by_arn", [False, True])
def test_shards_and_summary_by_name_or_arn(endpoint: str, raw: Any, name: str, by_arn: bool) -> None:
    raw.split_shard(StreamName=name, ShardToSplit=A, NewStartingHashKey=str(1 << 127))
    summary = raw.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    stream = opened(endpoint, name, arn=summary["StreamARN"] if by_arn else None)

    assert stream.shards() == [Shard(A, closed=True), Shard(shard_id(1), (A,)), Shard(shard_id(2), (A,))]
    assert stream.summary().arn == summary["StreamARN"]
    assert stream.summary().retention == timedelta(hours=24)
    assert stream.records(stream.iterator(A, Position()), 1).next_iterator is None


def test_throttling_is_retried_within_the_retry_time(endpoint: str, raw: Any, name: str, switches: MotoKinesis) -> None:
    put(raw, name, "a")
    stream = opened(endpoint, name)
    iterator = stream.iterator(A, Position())
    switches.throttle, switches.reads_per_second = True, 1

    assert [stream.records(iterator, 1).data for _ in range(3)] == [[b"a"]] * 3
    assert switches.throttled > 0


def test_throttling_beyond_the_retry_time_is_a_transient_error(
    endpoint: str, raw: Any, name: str, switches: MotoKinesis
) -> None:
    stream = opened(endpoint, name)
    iterator = stream.iterator(A, Position())
    switches.throttle, switches.reads_per_second = True, 0

    with pytest.raises(TransientError, match=r"KINESIS_UNREACHABLE.*ProvisionedThroughputExceededException"):
        stream.records(iterator, 1, retry_seconds=0.5)


def test_an_expired_iterator_is_replaced_after_the_last_record(
    endpoint: str, raw: Any, name: str, switches: MotoKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(raw, name, "a", "b", "c")
    stream = opened(endpoint, name)
    pages = PolledPages(stream, A, Position())
    assert pages.next_page(2).data == [b"a", b"b"]
    iterator = stream.iterator(A, Position())
    switches.iterator_seconds = -1.0
    with pytest.raises(IteratorExpired):
        stream.records(iterator, 1)

    monkeypatch.setattr(MotoKinesis, "check_age", expire_once(switches))
    assert pages.next_page(2).data == [b"c"]
    assert switches.expired == 2


def expire_once(switches: MotoKinesis) -> Any:
    """Refuse the next iterator as too old, and no other."""
    check = MotoKinesis.check_age

    def refuse(self: MotoKinesis, made_at: float) -> None:
        first, switches.iterator_seconds = switches.iterator_seconds < 0, 300.0
        check(self, 0.0 if first else made_at)

    return refuse


def test_missing_streams_and_shards_are_distinguished(endpoint: str, name: str) -> None:
    with pytest.raises(ConfigError, match="KINESIS_STREAM_MISSING"):
        opened(endpoint, "nothing").shards()
    with pytest.raises(ConfigError, match="KINESIS_STREAM_MISSING"):
        opened(endpoint, "nothing").iterator(A, Position())
    with pytest.raises(ShardNotFound):
        opened(endpoint, name).iterator(shard_id(9), Position())


def test_a_position_of_another_stream_is_refused(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.core.exceptions import JsonRESTError
    from moto.kinesis.models import KinesisBackend

    def refused(*_: Any) -> str:
        raise JsonRESTError("InvalidArgumentException", "StartingSequenceNumber is invalid.")

    monkeypatch.setattr(KinesisBackend, "get_shard_iterator", refused)
    with pytest.raises(ContractError, match="KINESIS_POSITION_INVALID"):
        opened(endpoint, name).iterator(A, Position(after="1"))


def test_an_unreachable_endpoint_is_retried_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = opened("http://127.0.0.1:9", "games")

    with pytest.raises(TransientError, match="KINESIS_UNREACHABLE"):
        stream.records("iterator", 1, retry_seconds=0.5)


def test_lost_replies_and_busy_answers_cost_nothing(endpoint: str, raw: Any, name: str, tmp_path: Any) -> None:
    texts = [str(number) for number in range(60)]
    put(raw, name, *texts)
    faults = [Fault(action=Action.LOSE_REPLY, every=3), Fault(action=Action.UNAVAILABLE, every=4)]
    with running_fault_proxy(endpoint, faults=faults[:1]) as proxy:
        stream = opened(proxy.endpoint, name)
        engine = Engine(stream, LocalObjects(tmp_path), options(maxRecords="7"))  # type: ignore[arg-type]
        engine.planner = engine.new_planner()
        first = engine.action() if engine.plan() else []
        engine.complete(first)
        proxy.faults = faults[1:]
        engine.drain()
        incidents = {incident.action for incident in proxy.incidents}

    assert [row.data.decode() for row in engine.rows()] == texts
    assert incidents == {Action.LOSE_REPLY, Action.UNAVAILABLE}


def test_a_truncated_response_is_an_outage() -> None:
    with pytest.raises(TransientError, match="KINESIS_ANSWER_UNREADABLE"):
        parse_records_body({"status_code": 200, "body": b'{"Records": ['}, {})


def test_a_wrong_clock_is_corrected_by_the_servers(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaworks.control import clock
    from deltaworks.sources.kinesis import client

    stream = opened(endpoint, name)
    stream.summary()
    assert abs(stream.now() - clock.utc_now()) < timedelta(seconds=1)

    monkeypatch.setattr(client, "utc_now", lambda: clock.utc_now() - timedelta(hours=1))
    stream.summary()
    assert abs(stream.now() - clock.utc_now()) < timedelta(seconds=3)


def test_the_state_on_local_disk_keeps_the_first_of_concurrent_puts(tmp_path: Any) -> None:
    first, second = QueryState(LocalObjects(tmp_path)), QueryState(LocalObjects(tmp_path))
    assert first.latest_plan("run") is None
    assert second.gaps() == []
    assert os.listdir(tmp_path) == []
