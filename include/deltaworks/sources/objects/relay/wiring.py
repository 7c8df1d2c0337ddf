"""Connects buckets to a queue (S3 → SNS → SQS) without changing their other notifications. Idempotent.

Creates one queue with a dead-letter queue, one topic, and one notification per bucket. Deletes nothing. S3 can only
replace a bucket's complete notification configuration; all other entries are written back unchanged, as are other
statements of policies. Timeouts are set only when the queue is created, so later changes by an administrator stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from botocore.exceptions import ClientError

from deltaworks.control.objects import aws_session
from deltaworks.errors import ContractError
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

#: Receives before a message moves to the dead-letter queue; SQS also counts receives that were not processed.
MAX_RECEIVES = 5
#: Visibility timeout, and message retention, in seconds.
VISIBILITY_SECONDS = 120
RETENTION_SECONDS = 14 * 86_400
_NOTIFICATION_KINDS = ("TopicConfigurations", "QueueConfigurations", "LambdaFunctionConfigurations")
_CREATED_EVENT = "s3:ObjectCreated:*"

State = Literal["present", "create", "change"]
_LAKE_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@dataclass(frozen=True, slots=True)
class WiringStep:
    """A resource that is needed to connect buckets to the queue. `state` says whether it exists, must be created, or
    must be changed.
    """

    kind: str
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class WiringArns:
    """The ARNs of the connected resources."""

    queue: str
    dead_letters: str
    topic: str


@dataclass(frozen=True, slots=True)
class WiringResult:
    """The required resources; created or changed unless it was a dry run. `queue_url` is None if the queue does not
    exist.
    """

    steps: tuple[WiringStep, ...]
    queue_url: str | None

    @property
    def pending_count(self) -> int:
        """The number of resources that had to be created or changed."""
        return sum(step.state != "present" for step in self.steps)


class Wiring:
    """Connects some buckets. Queue and topic are named `name`, the dead-letter queue `name`-dead.

    Two concurrent runs for one bucket may overwrite each other's notification, because S3 has no conditional update for
    it. Run it again in that case.
    """

    def __init__(self, messaging: AwsSpec, *, name: str, buckets: Sequence[str], prefix: str = "") -> None:
        options = messaging.boto3_options()
        session: Any = aws_session()
        self._s3, self._sns, self._sqs = (session.client(service, **options) for service in ("s3", "sns", "sqs"))
        identity = session.client("sts", **options).get_caller_identity()
        # In China and GovCloud, ARNs have another partition.
        self._account, self.partition = identity["Account"], identity["Arn"].split(":")[1]
        self._region = options["region_name"]
        self._name = name
        self._dead_letter_name = f"{name}-dead"
        self._buckets = tuple(buckets)
        self._prefix = prefix
        self.arns = WiringArns(self._arn("sqs", name), self._arn("sqs", self._dead_letter_name), self._arn("sns", name))

    def wire(self, *, dry_run: bool = True) -> WiringResult:
        """Determines the state of all resources and, unless it is a dry run, creates or changes them.

        Raises:
            ContractError: NOTIFICATION_OVERLAPS, a bucket announces the same objects to another target, which S3
                refuses; raised before anything is created.
        """
        for bucket in self._buckets:
            self._notification(bucket)
        steps = []
        for kind, name, state, create in self._resources():
            steps.append(WiringStep(kind, name, state()))
            if steps[-1].state != "present" and not dry_run:
                create()
        return WiringResult(tuple(steps), self._queue_url(self._name))

    def _arn(self, service: str, name: str) -> str:
        return f"arn:{self.partition}:{service}:{self._region}:{self._account}:{name}"

    def _resources(self) -> list[tuple[str, str, Callable[[], State], Callable[[], Any]]]:
        """Returns the resources in creation order, each with a function that returns its state and a function that
        creates it.
        """
        return [
            ("queue", self._dead_letter_name, self._dead_letter_state, self._create_dead_letter_queue),
            ("queue", self._name, self._queue_state, self._create_queue),
            ("topic", self._name, self._topic_state, self._create_topic),
            ("subscription", f"{self._name} to {self._name}", self._subscription_state, self._subscribe),
            *(
                (
                    "notification",
                    bucket,
                    partial(self._notification_state, bucket),
                    partial(self._put_notification, bucket),
                )
                for bucket in self._buckets
            ),
        ]

    def _queue_statement(self) -> dict[str, Any]:
        return {
            **_allow_service("sns.amazonaws.com", "sqs:SendMessage", self.arns.queue),
            "Condition": {"ArnEquals": {"aws:SourceArn": self.arns.topic}},
        }

    def _queue_state(self) -> State:
        url = self._queue_url(self._name)
        if url is None:
            return "create"
        attributes = self._attributes(url)
        complete = "RedrivePolicy" in attributes and _has_statement(attributes.get("Policy"), self._queue_statement())
        return "present" if complete else "change"

    def _create_queue(self) -> None:
        initial_attributes = {
            "VisibilityTimeout": str(VISIBILITY_SECONDS),
            "MessageRetentionPeriod": str(RETENTION_SECONDS),
        }
        url = self._queue_url(self._name)
        url = url or self._sqs.create_queue(QueueName=self._name, Attributes=initial_attributes)["QueueUrl"]
        current = self._attributes(url)
        redrive = {"deadLetterTargetArn": self.arns.dead_letters, "maxReceiveCount": MAX_RECEIVES}
        attributes = {
            "RedrivePolicy": current.get("RedrivePolicy", json.dumps(redrive)),
            "Policy": _with_statement(current.get("Policy"), self._queue_statement()),
        }
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)

    def _attributes(self, url: str) -> dict[str, str]:
        response = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy", "Policy"])
        attributes: dict[str, str] = response.get("Attributes", {})
        return attributes

    def _topic_statement(self) -> dict[str, Any]:
        return {
            **_allow_service("s3.amazonaws.com", "sns:Publish", self.arns.topic),
            "Condition": {
                "ArnLike": {"aws:SourceArn": [f"arn:{self.partition}:s3:::{bucket}" for bucket in self._buckets]},
                "StringEquals": {"aws:SourceAccount": self._account},
            },
        }

    def _dead_letter_state(self) -> State:
        return "present" if self._queue_url(self._dead_letter_name) else "create"

    def _create_dead_letter_queue(self) -> None:
        self._sqs.create_queue(
            QueueName=self._dead_letter_name, Attributes={"MessageRetentionPeriod": str(RETENTION_SECONDS)}
        )

    def _queue_url(self, name: str) -> str | None:
        try:
            return str(self._sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except ClientError as error:
            if "NonExistentQueue" in error.response["Error"]["Code"] or "QueueDoesNotExist" in str(error):
                return None
            raise

    def _topic_state(self) -> State:
        try:
            attributes = self._sns.get_topic_attributes(TopicArn=self.arns.topic)["Attributes"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NotFound", "NotFoundException"):
                return "create"
            raise
        return "present" if _has_statement(attributes.get("Policy"), self._topic_statement()) else "change"

    def _create_topic(self) -> None:
        topic = self._sns.create_topic(Name=self._name)["TopicArn"]
        current = self._sns.get_topic_attributes(TopicArn=topic)["Attributes"].get("Policy")
        policy = _with_statement(current, self._topic_statement())
        self._sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)

    def _subscription_state(self) -> State:
        pages = self._sns.get_paginator("list_subscriptions_by_topic")
        try:
            subscriptions = [
                subscription
                for page in pages.paginate(TopicArn=self.arns.topic)
                for subscription in page["Subscriptions"]
            ]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NotFound", "NotFoundException"):
                return "create"
            raise
        return (
            "present"
            if any(subscription["Endpoint"] == self.arns.queue for subscription in subscriptions)
            else "create"
        )

    def _subscribe(self) -> None:
        # Without raw delivery: messages have SNS's envelope.
        self._sns.subscribe(TopicArn=self.arns.topic, Protocol="sqs", Endpoint=self.arns.queue)

    def _notification_state(self, bucket: str) -> State:
        return self._notification(bucket)[0]

    def _notification(self, bucket: str) -> tuple[State, dict[str, Any]]:
        """Returns the state of the bucket's notification to our topic, and the complete configuration to write."""
        configuration = self._s3.get_bucket_notification_configuration(Bucket=bucket)
        configuration.pop("ResponseMetadata", None)
        expected = self._notification_entry()
        other_entries = [
            entry
            for kind in _NOTIFICATION_KINDS
            for entry in configuration.get(kind, [])
            if entry.get("Id") != expected["Id"]
        ]
        for entry in other_entries:
            if _overlaps(entry, self._prefix):
                raise ContractError(
                    "NOTIFICATION_OVERLAPS",
                    f"Notification {entry.get('Id')!r} of bucket {bucket} announces the same objects, and S3 "
                    "allows only one.",
                )
        topics = configuration.get("TopicConfigurations", [])
        current_entry = next((entry for entry in topics if entry.get("Id") == expected["Id"]), None)
        state: State = "create"
        if current_entry is not None:
            state = "present" if _is_equivalent(current_entry, expected) else "change"
        other_topics = [entry for entry in topics if entry.get("Id") != expected["Id"]]
        return state, {**configuration, "TopicConfigurations": [*other_topics, expected]}

    def _put_notification(self, bucket: str) -> None:
        _, configuration = self._notification(bucket)
        self._s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)

    def _notification_entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "Id": f"deltaworks-{self._name}",
            "TopicArn": self.arns.topic,
            "Events": [_CREATED_EVENT],
        }
        if self._prefix:
            entry["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": self._prefix}]}}
        return entry


def _allow_service(service: str, action: str, resource: str) -> dict[str, Any]:
    statement = {"Principal": {"Service": service}, "Action": action, "Resource": resource}
    return {"Sid": "Deltaworks", "Effect": "Allow", **statement}


def _has_statement(policy: str | None, statement: Mapping[str, Any]) -> bool:
    return policy is not None and statement in json.loads(policy).get("Statement", [])


def _with_statement(policy: str | None, statement: Mapping[str, Any]) -> str:
    """Returns the policy with our statement, which replaces an earlier version."""
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": "2012-10-17", "Statement": []}
    other_entries = [other for other in document["Statement"] if other.get("Sid") != statement["Sid"]]
    return json.dumps({**document, "Statement": [*other_entries, statement]})


def _rules(entry: Mapping[str, Any]) -> dict[str, str]:
    rules = entry.get("Filter", {}).get("Key", {}).get("FilterRules", [])
    return {rule["Name"].lower(): rule["Value"] for rule in rules}


def _is_equivalent(entry: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(entry.get(key) == expected[key] for key in ("TopicArn", "Events")) and _rules(entry) == _rules(expected)


def _overlaps(other: Mapping[str, Any], prefix: str) -> bool:
    """Returns whether two notifications could announce the same object, which S3 refuses.

    Suffix filters are not compared, because our notification has none.
    """
    if not any(event.startswith("s3:ObjectCreated:") for event in other.get("Events", [])):
        return False
    other_prefix = _rules(other).get("prefix", "")
    return other_prefix.startswith(prefix) or prefix.startswith(other_prefix)


def relay_policy(
    relay: RelaySpec, lake: StorageSpec, *, queue_arn: str, dead_letter_arn: str, partition: str = "aws"
) -> dict[str, Any]:
    """Returns the IAM policy for the relay's role: access to its queues and the lake, and to its buckets if it lists
    them.
    """
    receive_actions = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
    queue_actions = ("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage")
    statements = [_allow("Queues", (*receive_actions, *queue_actions), [queue_arn, dead_letter_arn])]
    if relay.listing is not None:
        listing = "s3:ListBucketVersions" if relay.overwrites == "every_version" else "s3:ListBucket"
        statements.append(_allow("Listing", (listing,), [f"arn:{partition}:s3:::{bucket}" for bucket in relay.buckets]))
    return _policy([*statements, *_lake_statements(lake, partition)])


def stream_policy(relay: RelaySpec, lake: StorageSpec, *, partition: str = "aws") -> dict[str, Any]:
    """Returns the IAM policy for streams and maintenance: access to landed objects and the lake."""
    buckets = [f"arn:{partition}:s3:::{bucket}" for bucket in relay.buckets]
    read_actions = ("s3:GetObject", "s3:GetObjectVersion") if relay.overwrites == "every_version" else ("s3:GetObject",)
    return _policy(
        [
            _allow("Landing", read_actions, [f"{bucket}/*" for bucket in buckets]),
            # Without this permission S3 answers 403 for a missing object.
            _allow("LandingListing", ("s3:ListBucket",), buckets),
            # For the health check, which reports how much time is left to read waiting objects.
            _allow("LandingRetention", ("s3:GetLifecycleConfiguration",), buckets),
            *_lake_statements(lake, partition),
        ]
    )


def wiring_policy(
    buckets: Sequence[str], *, queue_arn: str, dead_letter_arn: str, topic_arn: str, partition: str = "aws"
) -> dict[str, Any]:
    """Returns the IAM policy for the role that connects the buckets; needed only once."""
    queues = ("sqs:CreateQueue", "sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:SetQueueAttributes")
    topic = ("sns:CreateTopic", "sns:GetTopicAttributes", "sns:SetTopicAttributes", "sns:Subscribe")
    return _policy(
        [
            _allow("Queues", queues, [queue_arn, dead_letter_arn]),
            _allow("Topic", (*topic, "sns:ListSubscriptionsByTopic"), [topic_arn]),
            _allow(
                "Notifications",
                ("s3:GetBucketNotification", "s3:PutBucketNotification"),
                [f"arn:{partition}:s3:::{bucket}" for bucket in buckets],
            ),
        ]
    )


def _lake_statements(lake: StorageSpec, partition: str) -> list[dict[str, Any]]:
    bucket, objects = f"arn:{partition}:s3:::{lake.bucket}", f"{lake.prefix}/*" if lake.prefix else "*"
    listing = _allow("LakeListing", ("s3:ListBucket",), [bucket])
    if lake.prefix:
        listing["Condition"] = {"StringLike": {"s3:prefix": [lake.prefix, objects]}}
    return [_allow("Lake", _LAKE_ACTIONS, [f"{bucket}/{objects}"]), listing]


def _allow(name: str, actions: Sequence[str], resources: Sequence[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}
