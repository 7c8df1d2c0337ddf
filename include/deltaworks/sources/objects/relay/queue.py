"""The notification queue: receive, delete, extend and return messages in batches, entry by entry honest.

SQS answers a batch call with success for some entries and failure for others, so every answer is read.
Failures of the server are tried again; a receipt that has expired is not, since its message comes back by
itself.
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

from deltaworks.control.aws_sessions import aws_session
from deltaworks.control.clock import utc_now
from deltaworks.control.retry import attempts
from deltaworks.errors import ConfigError
from deltaworks.sources.outages import error_code, is_outage
from deltaworks.specs.storage import AwsSpec

#: SQS takes and gives no more than this many messages in one call.
MAX_BATCH_MESSAGES = 10
#: SQS refuses to hand out more while so many messages are in flight; nothing is wrong with the queue then.
OVER_LIMIT_CODE = "OverLimit"
_ATTEMPTS = 5
_MAX_CALL_BYTES = 200_000
_DELIVERIES = "ApproximateReceiveCount"
_WAITING = "ApproximateNumberOfMessages"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
T = TypeVar("T")
#: A relay that is killed costs its messages a delivery each, and SQS counts deliveries that reach nobody.
MIN_RECEIVE_COUNT = 3
#: Below, messages come again while the append that holds them is still under way.
MIN_VISIBILITY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a message. `held_since` is on the monotonic clock; `deliveries` counts this one too."""

    message_id: str
    receipt: str
    body: str
    received_at: datetime
    held_since: float
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of the entries of a batch call, however many calls it took. `expired_receipts` are of messages
    that have gone back to the queue meanwhile, or that somebody else has deleted."""

    succeeded: int = 0
    failed: int = 0
    expired_receipts: tuple[str, ...] = ()

    @property
    def expired(self) -> int:
        """How many receipts had expired."""
        return len(self.expired_receipts)


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """Where the queue itself puts a message that was delivered too often without being deleted."""

    dead_letter_arn: str
    max_receive_count: int


class NotificationQueue:
    """One SQS queue. Safe to share between threads.

    Args:
        visibility_seconds: how long messages received here stay invisible; by default what the queue itself says.
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
        """The queue's address."""
        return self._url

    def receive(self) -> list[Message]:
        """Up to ten messages, after a long poll.

        Raises:
            ConfigError: QUEUE_REFUSED when the queue is not there or may not be read.
        """
        # A timeout in the call would silently replace the queue's own, so there is one only where it was asked for.
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
        """Delete messages that are done with. What could not be deleted is counted: it comes back."""
        return self._call_in_batches(self._client.delete_message_batch, messages)

    def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
        """Keep messages invisible for `seconds` from now."""
        return self._call_in_batches(self._client.change_message_visibility_batch, messages, VisibilityTimeout=seconds)

    def return_messages(self, messages: Sequence[Message]) -> BatchOutcome:
        """Make messages visible again at once, for whoever comes next."""
        return self.extend(messages, seconds=0)

    def send(self, bodies: Sequence[str]) -> list[str]:
        """Put messages into the queue; those it did not take. Entries it refuses are tried again a few times."""
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
        """How long a message received here stays invisible."""
        if self._visibility_seconds is not None:
            return self._visibility_seconds
        return int(self._attributes("VisibilityTimeout")["VisibilityTimeout"])

    def approximate_backlog(self) -> int:
        """About how many messages wait: neither exact nor proof of an empty queue."""
        return int(self._attributes(_WAITING)[_WAITING])

    def retention_seconds(self) -> int:
        """For how long the queue keeps a message nobody deletes."""
        return int(self._attributes("MessageRetentionPeriod")["MessageRetentionPeriod"])

    def approximate_counts(self) -> tuple[int, int]:
        """About how many messages wait, and how many are in flight."""
        attributes = self._attributes(_WAITING, _IN_FLIGHT)
        return int(attributes[_WAITING]), int(attributes[_IN_FLIGHT])

    def redrive_policy(self) -> RedrivePolicy | None:
        """The queue's redrive policy, where it has one."""
        text = self._attributes("RedrivePolicy").get("RedrivePolicy")
        if not text:
            return None
        policy = json.loads(text)
        return RedrivePolicy(policy["deadLetterTargetArn"], int(policy["maxReceiveCount"]))

    def dead_letter_queue(self) -> NotificationQueue | None:
        """The queue's dead-letter queue, where it has one."""
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
        raise ConfigError(
            "QUEUE_REFUSED",
            f"The queue {self._url} refused: {reason}: {error}.",
            hint="Check queue_url of the relay, and messaging's endpoint, region, keys and permissions.",
        ) from error


def _chunks_by_size(bodies: Iterable[str]) -> Iterator[list[str]]:
    """Batches of at most ten bodies and, unless one alone is larger, of what SQS takes in one call."""
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
    """A setting to change: a condition, what is so, and what to do."""

    condition: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message} Next: {self.hint}"


def queue_warnings(queue: NotificationQueue) -> tuple[QueueWarning, ...]:
    """What of the queue's settings is bound to make trouble. Raises what asking the queue raises."""
    warnings = []
    policy, seconds = queue.redrive_policy(), queue.visibility_seconds()
    if policy is not None and policy.max_receive_count < MIN_RECEIVE_COUNT:
        warnings.append(
            QueueWarning(
                "QUEUE_REDRIVES_EARLY",
                f"{queue.url} puts a message aside after {policy.max_receive_count} deliveries: a relay that is killed "
                "while it holds messages makes dead letters of them.",
                "Set maxReceiveCount to 5 or more.",
            )
        )
    if seconds < MIN_VISIBILITY_SECONDS:
        warnings.append(
            QueueWarning(
                "QUEUE_VISIBILITY_SHORT",
                f"{queue.url} delivers a message again after {seconds} s, which a slow append takes longer than.",
                "Set the queue's visibility timeout to 120 s, or visibility_seconds of the relay.",
            )
        )
    return tuple(warnings)
