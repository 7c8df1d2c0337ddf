"""Sends events to a topic of Kafka by an idempotent producer; each is done when its broker says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collector.packing import SpooledEvent
from collector.sinks import DeadLetter, SinkBusyError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: For so long a producer tries a message before it comes back to the spool, which tries again.
_DELIVERY_SECONDS = 30
#: Codes of librdkafka for a message no broker of this topic will ever take.
_PERMANENT_ERRORS = ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "INVALID_RECORD")
_POLL_SECONDS = 0.2


class KafkaSink:
    """One topic. Used by one thread.

    Within one producer nothing comes twice, whatever it sends again; after a crash what was not yet recorded as done
    is sent once more.
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
        """Send events and wait for the word of the brokers; those that are too large for the topic.

        Raises:
            SinkBusyError: brokers did not take all of them within half a minute.
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
                failure = error.str() if error is not None else failure or "no word from the brokers"
                unsent.append(event)
        if unsent:
            # A producer that has failed may be fatally out of step with its brokers: the next try has a new one.
            self.close()
            # Whoever hands those over again hears of the ones that are never taken then.
            raise SinkBusyError(failure, remaining=[*unsent, *(item.event for item in dead_letters)])
        return dead_letters

    def close(self) -> None:
        """Give up what waits in the producer, all of which is in the spool, and let go of it."""
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
        """Hand one event to the producer; why that failed, empty where it did not."""
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
