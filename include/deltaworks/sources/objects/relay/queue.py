"""Accesses the notification queue: receives, deletes, extends and returns messages in batches.

A batch call of SQS may succeed for some entries and fail for others, so each entry's result is checked. Server errors
are retried. An expired receipt is not, because its message is redelivered.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.control.background import attempts
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import aws_session
from deltaworks.errors import ConfigError
from deltaworks.sources.outages import error_code, is_outage
from deltaworks.specs.storage import AwsSpec

#: Maximum number of messages per SQS call.
MAX_BATCH_MESSAGES = 10
#: SQS refuses to deliver more messages while too many are in flight; the queue is healthy then.
OVER_LIMIT_CODE = "OverLimit"
_ATTEMPTS = 5
_MAX_CALL_BYTES = 200_000
_DELIVERIES = "ApproximateReceiveCount"
_WAITING = "ApproximateNumberOfMessages"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
T = TypeVar("T")
#: If a relay is killed, SQS counts one delivery for each message it held, although none was processed.
MIN_RECEIVE_COUNT = 3
#: Below this value, messages are redelivered while the append that holds them is still running.
MIN_VISIBILITY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a message. `held_since` is monotonic time; `deliveries` includes this one."""

    message_id: str
    receipt: str
    body: str
    received_at: datetime
    held_since: float
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of a batch call, summed over all requests. `expired_receipts` belong to messages that were redelivered
    or deleted since they were received.
    """

    succeeded: int = 0
    failed: int = 0
    expired_receipts: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """The number of messages whose receipt had expired."""
        return len(self.expired_receipts)


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """The dead-letter queue of a queue, and the number of receives after which SQS moves a message there."""

    dead_letter_arn: str
    max_receive_count: int


class NotificationQueue:
    """One SQS queue. Thread-safe.

    Args:
        visibility_seconds: visibility timeout of received messages; the queue's own by default.
    """

    def __init__(
        self, messaging: AwsSpec, queue_url: str, *, wait_seconds: int = 5, visibility_seconds: int | None = None
    ) -> None:
        config = Config(
            connect_timeout=5,
            read_timeout=wait_seconds + 15,
            retries={"mode": "standard", "max_attempts": 2},
            max_pool_connections=64,
        )
        self._client: Any = aws_session().client("sqs", config=config, **messaging.boto3_options())
        self._messaging = messaging
        self._url = queue_url
        self._wait_seconds = wait_seconds
        self._visibility_seconds = visibility_seconds

    @property
    def url(self) -> str:
        """The queue's URL."""
        return self._url

    def receive(self) -> list[Message]:
        """Receives up to ten messages by long polling.

        Raises:
            ConfigError: QUEUE_REFUSED, the queue does not exist or may not be read.
        """
        # A timeout in the call would override the queue's own, so it is passed only if configured.
        visibility = {} if self._visibility_seconds is None else {"VisibilityTimeout": self._visibility_seconds}
        try:
            response = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=MAX_BATCH_MESSAGES,
                WaitTimeSeconds=self._wait_seconds,
                MessageSystemAttributeNames=[_DELIVERIES],
                **visibility,
            )
        except (ClientError, BotoCoreError) as error:
            self._raise_queue_error(error)
        now, held_since = utc_now(), time.monotonic()
        return [
            Message(
                message["MessageId"],
                message["ReceiptHandle"],
                message["Body"],
                now,
                held_since,
                int(message.get("Attributes", {}).get(_DELIVERIES, 1)),
            )
            for message in response.get("Messages", [])
        ]

    def delete(self, messages: Sequence[Message]) -> BatchOutcome:
        """Deletes processed messages. Failures are only counted, because SQS redelivers those messages."""
        return self._call_in_batches(self._client.delete_message_batch, messages)

    def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
        """Extends the visibility timeout of messages to `seconds` from now."""
        return self._call_in_batches(self._client.change_message_visibility_batch, messages, VisibilityTimeout=seconds)

    def return_messages(self, messages: Sequence[Message]) -> BatchOutcome:
        """Makes messages visible again immediately."""
        return self.extend(messages, seconds=0)

    def send(self, bodies: Sequence[str]) -> list[str]:
        """Sends messages. Returns the bodies that the queue did not accept after several attempts."""
        refused: list[str] = []
        for batch in _chunks_by_size(bodies):
            refused += self._send_batch(batch)
        return refused

    def _send_batch(self, batch: list[str]) -> list[str]:
        pending = {str(index): body for index, body in enumerate(batch)}
        for _ in attempts(_ATTEMPTS, first_wait_seconds=0.2, max_wait_seconds=2.0):
            entries = [{"Id": name, "MessageBody": body} for name, body in pending.items()]
            try:
                response = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            except (ClientError, BotoCoreError) as error:
                if not is_outage(error):
                    self._raise_queue_error(error)
                continue
            for entry in response.get("Successful", []):
                pending.pop(entry["Id"], None)
            if not pending:
                break
        return list(pending.values())

    def visibility_seconds(self) -> int:
        """Returns the visibility timeout of received messages."""
        if self._visibility_seconds is not None:
            return self._visibility_seconds
        return int(self._attributes("VisibilityTimeout")["VisibilityTimeout"])

    def approximate_backlog(self) -> int:
        """Returns the approximate number of waiting messages. A result of 0 does not prove that the queue is empty."""
        return int(self._attributes(_WAITING)[_WAITING])

    def retention_seconds(self) -> int:
        """Returns for how many seconds the queue retains a message."""
        return int(self._attributes("MessageRetentionPeriod")["MessageRetentionPeriod"])

    def approximate_counts(self) -> tuple[int, int]:
        """Returns the approximate numbers of waiting and in-flight messages."""
        attributes = self._attributes(_WAITING, _IN_FLIGHT)
        return int(attributes[_WAITING]), int(attributes[_IN_FLIGHT])

    def redrive_policy(self) -> RedrivePolicy | None:
        """Returns the queue's redrive policy, if any."""
        text = self._attributes("RedrivePolicy").get("RedrivePolicy")
        if not text:
            return None
        policy = json.loads(text)
        return RedrivePolicy(policy["deadLetterTargetArn"], int(policy["maxReceiveCount"]))

    def dead_letter_queue(self) -> NotificationQueue | None:
        """Returns the queue's dead-letter queue, if any."""
        policy = self.redrive_policy()
        if policy is None:
            return None
        _, _, _, _, account, name = policy.dead_letter_arn.split(":", 5)
        try:
            response = self._client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)
        except (ClientError, BotoCoreError) as error:
            self._raise_queue_error(error)
        return NotificationQueue(self._messaging, response["QueueUrl"], wait_seconds=self._wait_seconds)

    def _attributes(self, *names: str) -> dict[str, str]:
        try:
            response = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=list(names))
        except (ClientError, BotoCoreError) as error:
            self._raise_queue_error(error)
        return dict(response.get("Attributes") or {})

    def _call_in_batches(self, call: Callable[..., Any], messages: Sequence[Message], **extra: Any) -> BatchOutcome:
        outcomes = [self._call_batch(call, batch, extra) for batch in _chunks(messages)]
        return BatchOutcome(
            succeeded=sum(outcome.succeeded for outcome in outcomes),
            failed=sum(outcome.failed for outcome in outcomes),
            expired_receipts=tuple(receipt for outcome in outcomes for receipt in outcome.expired_receipts),
        )

    def _call_batch(self, call: Callable[..., Any], batch: list[Message], extra: dict[str, Any]) -> BatchOutcome:
        pending = dict(enumerate(batch))
        expired: list[str] = []
        for _ in attempts(_ATTEMPTS, first_wait_seconds=0.2, max_wait_seconds=2.0):
            entries = [
                {"Id": str(index), "ReceiptHandle": message.receipt, **extra} for index, message in pending.items()
            ]
            try:
                response = call(QueueUrl=self._url, Entries=entries)
            except (ClientError, BotoCoreError) as error:
                if not is_outage(error):
                    self._raise_queue_error(error)
                continue
            for entry in response.get("Successful", []):
                pending.pop(int(entry["Id"]), None)
            for entry in response.get("Failed", []):
                message = pending.pop(int(entry["Id"]), None) if entry.get("SenderFault") else None
                if message is not None:
                    expired.append(message.receipt)
            if not pending:
                break
        return BatchOutcome(
            succeeded=len(batch) - len(pending) - len(expired), failed=len(pending), expired_receipts=tuple(expired)
        )

    def _raise_queue_error(self, error: ClientError | BotoCoreError) -> NoReturn:
        if is_outage(error):
            raise error
        reason = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        raise ConfigError("QUEUE_REFUSED", f"The queue {self._url} refused: {reason}: {error}.") from error


def _chunks_by_size(bodies: Iterable[str]) -> Iterator[list[str]]:
    """Yields batches of at most ten bodies that fit into one SQS call. A body that is too large alone is a batch of its
    own.
    """
    batch: list[str] = []
    size = 0
    for body in bodies:
        length = len(body.encode("utf-8", "surrogatepass"))
        if batch and (len(batch) == MAX_BATCH_MESSAGES or size + length > _MAX_CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += length
    if batch:
        yield batch


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(itertools.islice(remaining, MAX_BATCH_MESSAGES)):
        yield batch


@dataclass(frozen=True, slots=True)
class QueueWarning:
    """A queue setting that should be changed: condition, description, and advice."""

    condition: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message} Next: {self.hint}"


def queue_warnings(queue: NotificationQueue) -> tuple[QueueWarning, ...]:
    """Returns warnings about queue settings that cause failures. Errors of SQS calls pass through."""
    warnings = []
    policy, seconds = queue.redrive_policy(), queue.visibility_seconds()
    if policy is not None and policy.max_receive_count < MIN_RECEIVE_COUNT:
        warnings.append(
            QueueWarning(
                "QUEUE_REDRIVES_EARLY",
                f"{queue.url} moves a message to the dead-letter queue after {policy.max_receive_count} "
                "deliveries. A relay that is killed while it holds messages turns them into dead letters.",
                "Set maxReceiveCount to 5 or more.",
            )
        )
    if seconds < MIN_VISIBILITY_SECONDS:
        warnings.append(
            QueueWarning(
                "QUEUE_VISIBILITY_SHORT",
                f"{queue.url} redelivers a message after {seconds} s. A slow append takes longer.",
                "Set the queue's visibility timeout, or the relay's visibility_seconds, to 120 s.",
            )
        )
    return tuple(warnings)
