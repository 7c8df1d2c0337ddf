"""The sink `sqs`: a message a change, in a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.feeds.messages import Message
from deltaworks.feeds.sinks.aws import LEAST_LIMIT_BYTES, BatchedSink, attributes_of, fifo_fields, open_client
from deltaworks.sources.outages import is_outage
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import SqsSinkSpec
from deltaworks.specs.storage import AwsSpec


class SqsSink(BatchedSink):
    """A queue. How large a message may be is asked of it: queues differ.

    Raises:
        ConfigError: FEED_SINK_REFUSED, there is no such queue, or it may not be asked.
    """

    def __init__(self, spec: SqsSinkSpec, messaging: AwsSpec) -> None:
        self._url = resolve_text(spec.queue_url)
        self._fifo = self._url.endswith(".fifo")
        self._client = open_client("sqs", messaging)
        super().__init__(self._url)
        self._largest_bytes = self._limit()

    def _limit(self) -> int:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["MaximumMessageSize"])
        except (ClientError, BotoCoreError) as error:
            if is_outage(error):
                return LEAST_LIMIT_BYTES
            raise self._refused(str(error)) from error
        return int(answer.get("Attributes", {}).get("MaximumMessageSize", LEAST_LIMIT_BYTES))

    def entry(self, message: Message) -> dict[str, Any]:
        fields = fifo_fields(message) if self._fifo else {}
        return {"MessageBody": message.body.decode(), "MessageAttributes": attributes_of(message), **fields}

    def call(self, entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        return answer
