"""The Kafka sink: an event is delivered when its broker acknowledges it, and a failed producer is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from collector.packing import SpooledEvent
from collector.sinks import SinkBusyError
from collector.sinks.kafka import KafkaSink

SENT = [SpooledEvent(number, b"%d" % number) for number in range(1, 7)]


class Brokers:
    """A producer whose brokers take what `word` has no error for."""

    made = 0

    def __init__(self, word: Callable[[bytes], int | None], *, silent: bool = False) -> None:
        self.word, self.silent = word, silent
        self.taken: list[bytes] = []
        self.options: dict[str, Any] = {}
        self._waiting: list[tuple[bytes, Callable[[Any, Any], None]]] = []

    def __call__(self, options: dict[str, Any]) -> Brokers:
        self.made += 1
        self.options = options
        return self

    def produce(self, topic: str, value: bytes, *, on_delivery: Callable[[Any, Any], None]) -> None:
        if len(value) > 1_000:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._waiting.append((value, on_delivery))

    def poll(self, _seconds: float) -> None: ...

    def flush(self, _seconds: float) -> int:
        for value, on_delivery in [] if self.silent else self._waiting:
            code = self.word(value)
            if code is None:
                self.taken.append(value)
            on_delivery(None if code is None else KafkaError(code), None)
        self._waiting = []
        return 0

    def purge(self) -> None:
        self._waiting = []


def test_acknowledged_events_are_delivered() -> None:
    brokers = Brokers(lambda _value: None)
    assert KafkaSink({}, "games", new_producer=brokers).send(SENT) == []
    assert brokers.taken == [event.payload for event in SENT]
    assert (brokers.options["enable.idempotence"], brokers.options["acks"]) == (True, "all")


def test_only_rejected_events_remain_and_the_next_attempt_has_a_new_producer() -> None:
    brokers = Brokers(lambda value: KafkaError._MSG_TIMED_OUT if value in (b"2", b"5") else None)
    sink = KafkaSink({}, "games", new_producer=brokers)
    with pytest.raises(SinkBusyError) as caught:
        sink.send(SENT)
    assert [event.payload for event in caught.value.remaining] == [b"2", b"5"]
    brokers.word = lambda _value: None
    sink.send(caught.value.remaining)
    assert sorted(brokers.taken) == [event.payload for event in SENT]
    assert brokers.made == 2


def test_without_an_acknowledgement_no_event_is_delivered() -> None:
    with pytest.raises(SinkBusyError) as caught:
        KafkaSink({}, "games", new_producer=Brokers(lambda _value: None, silent=True)).send(SENT)
    assert caught.value.remaining == SENT


def test_a_permanently_rejected_event_is_a_dead_letter() -> None:
    brokers = Brokers(lambda value: KafkaError.MSG_SIZE_TOO_LARGE if value == b"3" else None)
    huge = SpooledEvent(9, b"x" * 2_000)
    aside = KafkaSink({}, "games", new_producer=brokers).send([*SENT, huge])
    assert sorted(item.event.seq for item in aside) == [3, 9]
    assert len(brokers.taken) == 5


def test_a_dead_letter_is_not_lost_when_other_events_must_be_retried() -> None:
    brokers = Brokers(lambda value: KafkaError._MSG_TIMED_OUT if value == b"2" else None)
    huge = SpooledEvent(9, b"x" * 2_000)
    with pytest.raises(SinkBusyError) as caught:
        KafkaSink({}, "games", new_producer=brokers).send([*SENT, huge])
    assert sorted(event.seq for event in caught.value.remaining) == [2, 9]
