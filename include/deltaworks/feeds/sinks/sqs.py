"""The `sqs` sink: sends one message per change to a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.feeds.messages import Message
from deltaworks.feeds.sinks.aws import MIN_LIMIT_BYTES, BatchedSink, fifo_fields, message_attributes, open_client
from deltaworks.sources.outages import is_outage
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import SqsSinkSpec
from deltaworks.specs.storage import AwsSpec


class SqsSink(BatchedSink):
    """Sends to one SQS queue. The maximum message size is read from the queue's attributes.

    Raises:
        ConfigError: FEED_SINK_REFUSED, the queue is missing or access is denied.
    """

    def __init__(self, spec: SqsSinkSpec, messaging: AwsSpec) -> None:
        self._url = resolve_text(spec.queue_url)
        self._is_fifo = self._url.endswith(".fifo")
        self._client = open_client("sqs", messaging)
        super().__init__(self._url)
        self._max_message_bytes = self._queue_limit_bytes()

    def _queue_limit_bytes(self) -> int:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["MaximumMessageSize"])
        except (ClientError, BotoCoreError) as error:
            if is_outage(error):
                return MIN_LIMIT_BYTES
            raise self._refused_error(str(error)) from error
        return int(response.get("Attributes", {}).get("MaximumMessageSize", MIN_LIMIT_BYTES))

    def entry(self, message: Message) -> dict[str, Any]:
        fields = fifo_fields(message) if self._is_fifo else {}
        return {"MessageBody": message.body.decode(), "MessageAttributes": message_attributes(message), **fields}

    def call(self, entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        response: Mapping[str, Any] = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        return response
