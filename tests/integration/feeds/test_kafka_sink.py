"""A feed to a real Kafka broker: order per key, a record that is too large, and an unavailable broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.sinks import open_sink
from deltaworks.specs.feeds import KafkaSinkSpec
from deltaworks.specs.storage import AwsSpec
from sandbox.servers.kafka_broker import RunningBroker, create_topics, running_broker
from tests.unit.feeds.feed_harness import FeedHarness, applied, declared

TOPIC = "offers"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka"), settings={"auto.create.topics.enable": "false"}) as running:
        yield running


def spec_of(broker: RunningBroker, topic: str = TOPIC) -> KafkaSinkSpec:
    return KafkaSinkSpec(kind="kafka", bootstrap_servers=broker.address.bootstrap, topic=topic)


def records(broker: RunningBroker, topic: str, count: int) -> list[tuple[int, str, dict[str, object]]]:
    """Partition, key and value of the first records, in order per partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    taken = []
    try:
        while len(taken) < count:
            record = consumer.poll(30)
            assert record is not None, f"{len(taken)} of {count} records came"
            assert record.error() is None
            key, value = record.key(), record.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            taken.append((record.partition() or 0, key.decode(), json.loads(value)))
    finally:
        consumer.close()
    return taken


def test_rows_of_a_key_keep_their_order_in_one_partition(broker: RunningBroker, tmp_path: Path) -> None:
    create_topics(broker.address.bootstrap, [TOPIC])
    stage = FeedHarness(tmp_path, declared())
    sink = open_sink(spec_of(broker), AwsSpec())
    feed = stage.feed(sink)
    for orders in range(5):
        stage.rebuild(0, {country: orders for country in ("at", "ch", "de", "fr")})
        feed.run_once()
    stage.rebuild(0, {"de": 9})
    feed.run_once()
    taken = records(broker, TOPIC, 24)
    assert applied([content for _, _, content in taken], ("event_date", "country")) == stage.rows()
    for key in {key for _, key, _ in taken}:
        ours = [(partition, content["number"]) for partition, at, content in taken if at == key]
        assert len({partition for partition, _ in ours}) == 1
        assert [number for _, number in ours] == sorted(number for _, number in ours)  # type: ignore[type-var]


def test_a_record_too_large_is_rejected_and_the_rest_arrives(broker: RunningBroker) -> None:
    create_topics(broker.address.bootstrap, ["large"])
    sink = open_sink(spec_of(broker, "large"), AwsSpec())
    sent = [
        Message(id=f"{number}", key=f"k{number}", op="upsert", feed="f", body=b'"' + b"x" * size + b'"')
        for number, size in enumerate((10, 3_000_000, 10))
    ]
    outcome = sink.send(sent)
    assert {name: reason for name, (reason, _) in outcome.rejected.items()} == {"1": DeadReason.TOO_LARGE}
    assert outcome.failed == {}
    assert len(records(broker, "large", 2)) == 2


def test_a_missing_topic_is_a_configuration_error(broker: RunningBroker) -> None:
    with pytest.raises(ConfigError, match="FEED_SINK_REFUSED"):
        open_sink(spec_of(broker, "nobody"), AwsSpec()).send(
            [Message(id="1", key="k", op="upsert", feed="f", body=b"{}")]
        )


def test_a_feed_resumes_after_its_broker_was_killed(broker: RunningBroker, tmp_path: Path) -> None:
    create_topics(broker.address.bootstrap, ["back"])
    stage = FeedHarness(tmp_path)
    stage.rebuild(0, {"de": 1})
    sink = open_sink(spec_of(broker, "back"), AwsSpec())
    broker.kill()
    waits: list[float] = []

    def pause(seconds: float) -> None:
        if seconds:
            waits.append(seconds)
            broker.start()

    stage.feed(sink, pause=pause).run_once()
    assert len(waits) == 1
    assert [content["op"] for _, _, content in records(broker, "back", 1)] == ["upsert"]
