"""Sends records to Kafka topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltaworks.errors import TransientError
from generator.engagement import Send
from sandbox.servers.kafka_broker import BrokerAddress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_SECONDS = 60.0


@contextmanager
def topic_sink(address: BrokerAddress) -> Iterator[Send]:
    """Yields a function that sends `(topic, key, value)` and keeps the order per key. Leaving the block waits for all
    acknowledgements.

    Raises:
        TransientError: RECORDS_NOT_SENT, the broker did not accept them within a minute.
    """
    from confluent_kafka import KafkaException, Producer

    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    options = {**address.client_options(), "enable.idempotence": True, "linger.ms": 20, "compression.type": "zstd"}
    producer = Producer({**options, "delivery.timeout.ms": int(_SECONDS * 1000)})

    def send(topic: str, key: str, value: bytes) -> None:
        while not refused:
            try:
                producer.produce(topic, value, key=key.encode(), on_delivery=on_delivery)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(0.5)
            except KafkaException as error:
                raise _send_error(str(error)) from error
        raise _send_error(str(refused[0]))

    yield send
    left = producer.flush(_SECONDS)
    if left or refused:
        raise _send_error(str(refused[0]) if refused else f"{left} records are still on their way")


def _send_error(why: str) -> TransientError:
    return TransientError("RECORDS_NOT_SENT", f"The broker did not take all records: {why}.")
