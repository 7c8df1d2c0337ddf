"""The notification queue: receive, delete, extend and return messages in batches, entry by entry honest.

SQS answers a batch call with success for some entries and failure for others, so every answer is read.
Failures of the server are tried again; a receipt that has expired is not, since its message comes back by
itself.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.control.clock import utc_now
from deltaworks.errors import ConfigError
from deltaworks.sources.outages import error_code, is_outage
from deltaworks.specs.storage import AwsSpec

#: SQS takes and gives no more than this many messages in one call.
BATCH = 10
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a message. `held_since` is on the monotonic clock."""

    message_id: str
    receipt: str
    body: str
    received_at: datetime
    held_since: float


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of the entries of a batch call, however many calls it took."""

    done: int = 0
    expired: int = 0
    failed: int = 0


class NotificationQueue:
    """One SQS queue. Safe to share between threads."""

    def __init__(self, messaging: AwsSpec, queue_url: str, *, wait_seconds: int = 5) -> None:
        config = Config(
            connect_timeout=5,
            read_timeout=wait_seconds + 15,
            retries={"mode": "standard", "max_attempts": 2},
            max_pool_connections=64,
        )
        self._client: Any = boto3.session.Session().client("sqs", config=config, **messaging.boto3_options())
        self._url = queue_url
        self._wait_seconds = wait_seconds

    def receive(self) -> list[Message]:
        """Up to ten messages, after a long poll. The queue's own visibility timeout applies.

        Raises:
            ConfigError: QUEUE_REFUSED when the queue is not there or may not be read.
        """
        try:
            answer = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=self._wait_seconds
            )
        except (ClientError, BotoCoreError) as error:
            self._raise(error)
        now, held_since = utc_now(), time.monotonic()
        return [
            Message(found["MessageId"], found["ReceiptHandle"], found["Body"], now, held_since)
            for found in answer.get("Messages", [])
        ]

    def delete(self, messages: Sequence[Message]) -> BatchOutcome:
        """Delete messages that are done with. What could not be deleted is counted: it comes back."""
        return self._in_batches(self._client.delete_message_batch, messages)

    def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
        """Keep messages invisible for `seconds` from now."""
        return self._in_batches(self._client.change_message_visibility_batch, messages, VisibilityTimeout=seconds)

    def give_back(self, messages: Sequence[Message]) -> BatchOutcome:
        """Make messages visible again at once, for whoever comes next."""
        return self.extend(messages, seconds=0)

    def visibility_seconds(self) -> int:
        """The queue's own visibility timeout."""
        return int(self._attribute("VisibilityTimeout"))

    def approximate_backlog(self) -> int:
        """About how many messages wait: neither exact nor proof of an empty queue."""
        return int(self._attribute("ApproximateNumberOfMessages"))

    def _attribute(self, name: str) -> str:
        try:
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=[name])
        except (ClientError, BotoCoreError) as error:
            self._raise(error)
        return str(answer["Attributes"][name])

    def _in_batches(self, call: Callable[..., Any], messages: Sequence[Message], **extra: Any) -> BatchOutcome:
        done = expired = failed = 0
        for batch in _chunks(messages):
            outcome = self._one_batch(call, batch, extra)
            done, expired, failed = done + outcome.done, expired + outcome.expired, failed + outcome.failed
        return BatchOutcome(done=done, expired=expired, failed=failed)

    def _one_batch(self, call: Callable[..., Any], batch: list[Message], extra: dict[str, Any]) -> BatchOutcome:
        left = dict(enumerate(batch))
        expired = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, 0.1 * 2**attempt))
            entries = [{"Id": str(index), "ReceiptHandle": message.receipt, **extra} for index, message in left.items()]
            try:
                answer = call(QueueUrl=self._url, Entries=entries)
            except (ClientError, BotoCoreError) as error:
                if not is_outage(error):
                    self._raise(error)
                continue
            for entry in answer.get("Successful", []):
                left.pop(int(entry["Id"]), None)
            for entry in answer.get("Failed", []):
                if entry.get("SenderFault") and left.pop(int(entry["Id"]), None):
                    expired += 1
            if not left:
                break
        return BatchOutcome(done=len(batch) - len(left) - expired, expired=expired, failed=len(left))

    def _raise(self, error: ClientError | BotoCoreError) -> NoReturn:
        if is_outage(error):
            raise error
        reason = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        raise ConfigError(
            "QUEUE_REFUSED",
            f"The queue {self._url} refused: {reason}: {error}.",
            hint="Check queue_url of the relay, and messaging's endpoint, region, keys and permissions.",
        ) from error


def _chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    remaining = iter(messages)
    while batch := list(itertools.islice(remaining, BATCH)):
        yield batch
