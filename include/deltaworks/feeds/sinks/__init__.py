"""Sinks of feeds. A sink sends messages and returns the result of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from deltaworks.feeds.sinks.aws import SnsSink, SqsSink
from deltaworks.feeds.sinks.base import SendOutcome, Sink, WebhookSink
from deltaworks.feeds.sinks.kafka import KafkaSink
from deltaworks.specs.feeds import SinkSpec
from deltaworks.specs.storage import AwsSpec

__all__ = ["SINKS", "SendOutcome", "Sink", "open_sink"]

#: Sink factories by kind. A factory receives a sink's spec and the environment's `messaging`.
SINKS: Final[Mapping[str, Callable[[Any, AwsSpec], Sink]]] = {
    "sqs": SqsSink,
    "sns": SnsSink,
    "kafka": KafkaSink,
    "webhook": WebhookSink,
}


def open_sink(spec: SinkSpec, messaging: AwsSpec) -> Sink:
    """Opens the declared sink.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED, FEED_SINK_REFUSED.
    """
    return SINKS[spec.kind](spec, messaging)
