"""The sinks `sqs` and `sns`: one message per change, up to ten per request, several requests in parallel.

Each message has its own result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.sinks.base import SendOutcome, sink_refused_error, split_into_batches
from deltaworks.sources.outages import error_code, is_outage
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import SnsSinkSpec, SqsSinkSpec
from deltaworks.specs.storage import AwsSpec

#: Maximum messages per request.
_MAX_ENTRIES = 10
#: Minimum message size limit of SQS queues, and the limit of SNS; attributes are included.
MIN_LIMIT_BYTES: Final = 256 * 1024
#: Reserved bytes for names, types and values of the message attributes.
_ATTRIBUTE_BYTES = 256
_THREADS = 4
#: Error codes of a request that is too large, although none of its messages is.
_BATCH_TOO_LARGE = frozenset({"AWS.SimpleQueueService.BatchRequestTooLong", "BatchRequestTooLong"})
_HINT = "Check the address under `to`, and messaging's endpoint, region, keys and permissions."
#: Sends a batch of entries and returns boto3's response.
Call = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


class BatchedSink:
    """Sends messages in batches. Subclasses build entries and send requests."""

    def __init__(self, destination: str, *, max_message_bytes: int = MIN_LIMIT_BYTES) -> None:
        self._destination = destination
        self._max_message_bytes = max_message_bytes
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="feed-sink")

    def entry(self, message: Message) -> dict[str, Any]:
        """Returns the message as an entry of a batch request, without its `Id`."""
        raise NotImplementedError

    def call(self, entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        """Sends one batch request. Raises boto3's errors."""
        raise NotImplementedError

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        outcome = SendOutcome()
        sendable = []
        for item in messages:
            size = len(item.body) + _ATTRIBUTE_BYTES
            if size > self._max_message_bytes:
                text = f"it has {size:,} bytes, and {self._destination} takes {self._max_message_bytes:,}"
                outcome.rejected[item.id] = DeadReason.TOO_LARGE, text
            else:
                sendable.append(item)
        max_batch_bytes = max(MIN_LIMIT_BYTES, self._max_message_bytes)
        parts = split_into_batches(
            sendable, max_messages=_MAX_ENTRIES, max_bytes=max_batch_bytes, extra_bytes=_ATTRIBUTE_BYTES
        )
        for part in self._pool.map(self._send_batch, list(parts)):
            outcome.add(part)
        return outcome

    def _send_batch(self, batch: list[Message]) -> SendOutcome:
        from botocore.exceptions import BotoCoreError, ClientError

        by_entry = {f"{number}": item for number, item in enumerate(batch)}
        entries = [{"Id": name, **self.entry(item)} for name, item in by_entry.items()]
        try:
            response = self.call(entries)
        except (ClientError, BotoCoreError) as error:
            return self._failed_call(batch, error)
        outcome = SendOutcome()
        accepted = {entry["Id"] for entry in response.get("Successful", ())}
        for entry in response.get("Failed", ()):
            item, code = by_entry[entry["Id"]], str(entry.get("Code", ""))
            reason = f"{code} {entry.get('Message', '')}".strip()
            if entry.get("SenderFault") and "Throttl" not in code:
                outcome.rejected[item.id] = DeadReason.REFUSED, reason
            else:
                outcome.failed[item.id] = reason
        for name, item in by_entry.items():
            if name not in accepted and item.id not in outcome.rejected:
                outcome.failed.setdefault(item.id, "the response does not contain it")
        return outcome

    def _failed_call(self, batch: list[Message], error: Any) -> SendOutcome:
        """Handles a failed request: splits a batch that is too large, and returns the outcome of each message."""
        from botocore.exceptions import ClientError

        if is_outage(error):
            return SendOutcome(failed=dict.fromkeys((item.id for item in batch), f"{type(error).__name__}: {error}"))
        code = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        if code in _BATCH_TOO_LARGE and len(batch) > 1:
            half, outcome = len(batch) // 2, self._send_batch(batch[: len(batch) // 2])
            outcome.add(self._send_batch(batch[half:]))
            return outcome
        if code in _BATCH_TOO_LARGE or "InvalidMessageContents" in code:
            if len(batch) == 1:
                reason = DeadReason.TOO_LARGE if code in _BATCH_TOO_LARGE else DeadReason.REFUSED
                return SendOutcome(rejected={batch[0].id: (reason, f"{code}: {error}")})
            outcome = SendOutcome()
            for item in batch:
                outcome.add(self._send_batch([item]))
            return outcome
        raise self._refused_error(f"{code}: {error}") from error

    def _refused_error(self, reason: str) -> ConfigError:
        return sink_refused_error(self._destination, reason, hint=_HINT)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def open_client(service: str, messaging: AwsSpec) -> Any:
    """Creates a client that gives up within seconds, because feeds retry themselves."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5,
        read_timeout=20,
        retries={"mode": "standard", "max_attempts": 2},
        max_pool_connections=2 * _THREADS,
    )
    session: Any = boto3.session.Session()
    return session.client(service, config=config, **messaging.boto3_options())


def message_attributes(message: Message) -> dict[str, dict[str, str]]:
    """Returns the attributes for subscription filters."""
    values = {"feed": message.feed, "op": message.op}
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


def fifo_fields(message: Message) -> dict[str, str]:
    """Returns the group and deduplication id for FIFO queues and topics."""
    group = hashlib.sha256(message.key.encode()).hexdigest()[:32]
    return {"MessageGroupId": group, "MessageDeduplicationId": message.id}


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
