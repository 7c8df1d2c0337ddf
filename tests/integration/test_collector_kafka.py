"""A collector's sink with a real broker: oversized events are dead letters, and an outage duplicates nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from collector.packing import SpooledEvent
from collector.sinks import DeadLetter, SinkBusyError
from collector.sinks.kafka import KafkaSink
from sandbox.servers.kafka_broker import RunningBroker, create_topics, running_broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka"), settings={"auto.create.topics.enable": "false"}) as running:
        yield running


def events(first: int, last: int) -> list[SpooledEvent]:
    return [SpooledEvent(seq, json.dumps({"seq": seq}).encode()) for seq in range(first, last + 1)]


def taken(broker: RunningBroker, topic: str) -> Counter[int]:
    """Returns how often each event is in the topic."""
    options = {"bootstrap.servers": broker.address.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    counts: Counter[int] = Counter()
    try:
        # The consumer group needs a moment to start; afterwards an empty poll means the end of the topic.
        while (record := consumer.poll(5 if counts else 30)) is not None:
            assert record.error() is None
            value = record.value()
            assert isinstance(value, bytes)
            counts[json.loads(value)["seq"]] += 1
    finally:
        consumer.close()
    return counts


def test_all_events_are_in_the_topic_once_and_the_oversized_one_is_a_dead_letter(broker: RunningBroker) -> None:
    create_topics(broker.address.bootstrap, ["events"])
    huge = SpooledEvent(501, b'"' + b"x" * 3_000_000 + b'"')
    sink = KafkaSink(broker.address.client_options(), "events")

    aside = sink.send([*events(1, 500), huge, *events(502, 1000)])

    assert [type(item) for item in aside] == [DeadLetter]
    assert aside[0].event is huge
    assert taken(broker, "events") == Counter(set(range(1, 1001)) - {501})


def test_events_not_accepted_during_a_broker_outage_are_resent_and_arrive_once(broker: RunningBroker) -> None:
    create_topics(broker.address.bootstrap, ["back"])
    sink = KafkaSink(broker.address.client_options(), "back")
    assert sink.send(events(1, 100)) == []
    broker.kill()

    with pytest.raises(SinkBusyError) as busy:
        sink.send(events(101, 200))
    assert [event.seq for event in busy.value.remaining] == list(range(101, 201))
    broker.start()
    assert sink.send(busy.value.remaining) == []

    assert taken(broker, "back") == Counter(range(1, 201))
