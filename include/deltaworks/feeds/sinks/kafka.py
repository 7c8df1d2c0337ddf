"""The `kafka` sink: one record per change with its key, acknowledged by all in-sync replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.sinks.base import SendOutcome, sink_refused_error
from deltaworks.specs.base import Reference, resolve_text
from deltaworks.specs.feeds import KafkaSinkSpec
from deltaworks.specs.record_sources import KafkaSecuritySpec
from deltaworks.specs.storage import AwsSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_DELIVERY_SECONDS = 30
_METADATA_SECONDS = 10
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE")
_REJECTED = ("INVALID_RECORD", "INVALID_MSG", "_INVALID_ARG")
#: Error codes of a missing topic or missing authorization, after which no record is accepted.
_TOPIC_UNAVAILABLE = (
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
    "TOPIC_EXCEPTION",
)


class KafkaSink:
    """Produces to one topic. Records with the same key go to one partition; retries neither duplicate nor
    reorder them."""

    def __init__(self, spec: KafkaSinkSpec, _messaging: AwsSpec) -> None:
        from confluent_kafka import Producer

        self._topic = spec.topic
        self._producer: Any = Producer(
            {
                "bootstrap.servers": resolve_text(spec.bootstrap_servers),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "compression.type": "zstd",
                "delivery.timeout.ms": _DELIVERY_SECONDS * 1000,
                # Shorter than the delivery timeout; otherwise a missing topic would look like unreachable brokers.
                "topic.metadata.propagation.max.ms": _METADATA_SECONDS * 1000,
                **_security_options(spec.security),
            }
        )

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        from confluent_kafka import KafkaException

        outcome, pending = SendOutcome(), {item.id for item in messages}
        topic_errors: list[Any] = []

        def delivered(message_id: str) -> Callable[[KafkaError | None, object], None]:
            # The callback is bound to the message id, because librdkafka returns records without headers.
            def on_delivery(error: KafkaError | None, _record: object) -> None:
                pending.discard(message_id)
                if error is not None:
                    self._classify_error(outcome, topic_errors, message_id, error)

            return on_delivery

        for item in messages:
            headers = {"id": item.id.encode(), "feed": item.feed.encode(), "op": item.op.encode()}
            try:
                self._producer.produce(
                    self._topic, item.body, key=item.key.encode(), headers=headers, on_delivery=delivered(item.id)
                )
            except BufferError:
                self._producer.poll(0.5)
            except KafkaException as error:
                pending.discard(item.id)
                self._classify_error(outcome, topic_errors, item.id, error.args[0])
            self._producer.poll(0)
        self._producer.flush(_DELIVERY_SECONDS + 5)
        if topic_errors:
            raise sink_refused_error(
                f"The topic {self._topic}", topic_errors[0], hint="Create it, and allow this client to write."
            )
        for message_id in pending:
            outcome.failed[message_id] = "the brokers did not acknowledge it in time"
        return outcome

    @staticmethod
    def _classify_error(outcome: SendOutcome, topic_errors: list[str], message_id: str, error: KafkaError) -> None:
        name, detail = error.name(), f"{error.name()}: {error.str()}"
        if name in _TOO_LARGE:
            outcome.rejected[message_id] = DeadReason.TOO_LARGE, detail
        elif name in _REJECTED:
            outcome.rejected[message_id] = DeadReason.REFUSED, detail
        else:
            outcome.failed[message_id] = detail
            if name in _TOPIC_UNAVAILABLE:
                topic_errors.append(detail)

    def close(self) -> None:
        self._producer.purge()


def _security_options(security: KafkaSecuritySpec | None) -> dict[str, str]:
    """Returns librdkafka's options for the declared security. Contains secrets."""
    if security is None:
        return {}
    options: dict[str, str] = {"security.protocol": security.protocol}
    if security.mechanism and security.username and security.password:
        options |= {
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username.resolve(),
            "sasl.password": security.password.resolve(),
        }
    if security.truststore is not None:
        options["ssl.ca.location"] = _existing_file(security.truststore)
    if security.keystore is not None:
        options["ssl.certificate.location"] = options["ssl.key.location"] = _existing_file(security.keystore)
    if security.key_password is not None:
        options["ssl.key.password"] = security.key_password.resolve()
    return options


def _existing_file(declared: Reference | str) -> str:
    path = resolve_text(declared)
    if not Path(path).is_file():
        raise ConfigError("FEED_SINK_REFUSED", f"{path} is not a file on this machine.", hint="Put the PEM file there.")
    return path
