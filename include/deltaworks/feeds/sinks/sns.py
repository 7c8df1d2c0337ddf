"""The `sns` sink: publishes one message per change to a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.feeds.messages import Message
from deltaworks.feeds.sinks.aws import BatchedSink, fifo_fields, message_attributes, open_client
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import SnsSinkSpec
from deltaworks.specs.storage import AwsSpec


class SnsSink(BatchedSink):
    """Publishes to one SNS topic."""

    def __init__(self, spec: SnsSinkSpec, messaging: AwsSpec) -> None:
        self._topic = resolve_text(spec.topic)
        self._is_fifo = self._topic.endswith(".fifo")
        self._client = open_client("sns", messaging)
        super().__init__(self._topic)

    def entry(self, message: Message) -> dict[str, Any]:
        fields = fifo_fields(message) if self._is_fifo else {}
        return {"Message": message.body.decode(), "MessageAttributes": message_attributes(message), **fields}

    def call(self, entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        response: Mapping[str, Any] = self._client.publish_batch(
            TopicArn=self._topic, PublishBatchRequestEntries=entries
        )
        return response
