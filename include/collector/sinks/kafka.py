"""Sends events to a Kafka topic with an idempotent producer; an event is delivered when the broker acknowledges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collector.packing import SpooledEvent
from collector.sinks import DeadLetter, SinkBusyError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: Delivery timeout of the producer; the spool retries after that.
_DELIVERY_SECONDS = 30
#: librdkafka errors for messages that the topic can never accept.
_PERMANENT_ERRORS = ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "INVALID_RECORD")
_POLL_SECONDS = 0.2


class KafkaSink:
    """Sends events to one topic. Not thread-safe.

    A producer never duplicates an event. After a crash, events whose delivery was not recorded are sent again.
    """

    def __init__(
        self, options: Mapping[str, Any], topic: str, *, new_producer: Callable[..., Any] | None = None
    ) -> None:
        self._options = {
            **options,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "compression.type": "zstd",
            "delivery.timeout.ms": _DELIVERY_SECONDS * 1000,
        }
        self._topic = topic
        self._new_producer = new_producer
        self._producer: Producer | None = None

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        """Sends events and waits for acknowledgements; returns oversized events as dead letters.

        Raises:
            SinkBusyError: brokers did not accept all of them within half a minute.
        """
        results: dict[int, KafkaError | None] = {}

        def record_delivery(index: int) -> Callable[[KafkaError | None, Message], None]:
            return lambda error, _message: results.__setitem__(index, error)

        failure = ""
        producer = self._get_producer()
        dead_letters: list[DeadLetter] = []
        for index, event in enumerate(events):
            failure = self._produce(producer, event, record_delivery(index), dead_letters) or failure
            if failure:
                break
        producer.flush(_DELIVERY_SECONDS + 5)
        unsent = []
        rejected_seqs = {item.event.seq for item in dead_letters}
        for index, event in enumerate(events):
            if event.seq in rejected_seqs:
                continue
            error = results.get(index)
            if index in results and error is None:
                continue
            if error is not None and error.name() in _PERMANENT_ERRORS:
                dead_letters.append(DeadLetter(event, error.str()))
            else:
                failure = error.str() if error is not None else failure or "no acknowledgement from the brokers"
                unsent.append(event)
        if unsent:
            # A failed producer may be permanently out of sequence with its brokers; the next attempt creates a new one.
            self.close()
            # The caller learns of dead letters when it sends the remaining events again.
            raise SinkBusyError(failure, remaining=[*unsent, *(item.event for item in dead_letters)])
        return dead_letters

    def close(self) -> None:
        """Discards the producer's queue, whose events are still in the spool, and closes it."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None

    def _get_producer(self) -> Any:
        if self._producer is None:
            from confluent_kafka import Producer as Make

            self._producer = (self._new_producer or Make)(self._options)
        return self._producer

    def _produce(
        self, producer: Any, event: SpooledEvent, on_delivery: Callable[..., None], dead_letters: list[DeadLetter]
    ) -> str:
        """Queues one event; returns the error, empty on success."""
        from confluent_kafka import KafkaException

        while True:
            try:
                producer.produce(self._topic, event.payload, on_delivery=on_delivery)
                producer.poll(0)
            except BufferError:
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].name() not in _PERMANENT_ERRORS:
                    return str(error)
                dead_letters.append(DeadLetter(event, error.args[0].str()))
                return ""
            else:
                return ""
