"""Wires buckets to a queue, S3 → SNS → SQS, beside what the buckets already announce to others.

One queue with a dead-letter queue, one topic, and in each bucket one notification. Nothing is deleted. Of a bucket's
configuration, which S3 replaces as a whole, and of policies only our own entry is written, and timeouts only where the
queue is created: what somebody has set stays. Running it again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import boto3
from botocore.exceptions import ClientError

from deltaworks.errors import ContractError
from deltaworks.specs.storage import AwsSpec

#: Deliveries before a message goes to the dead-letter queue: SQS also counts those that reached nobody.
MAX_RECEIVES = 5
#: How long a message is held for the relay, and kept for a relay that is away, in seconds.
VISIBILITY_SECONDS = 120
RETENTION_SECONDS = 14 * 86_400
_KINDS = ("TopicConfigurations", "QueueConfigurations", "LambdaFunctionConfigurations")
_CREATED = "s3:ObjectCreated:*"

State = Literal["present", "create", "change"]


@dataclass(frozen=True, slots=True)
class WiringStep:
    """One thing that has to be there; `state` says whether it is, has to be made, or is there and otherwise."""

    kind: str
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class WiringArns:
    """How AWS names what is wired."""

    queue: str
    dead_letters: str
    topic: str


@dataclass(frozen=True, slots=True)
class WiringResult:
    """What was found, and, unless it was a dry run, made; `queue_url` is None while there is no queue."""

    steps: tuple[WiringStep, ...]
    queue_url: str | None

    @property
    def to_do(self) -> int:
        """How many things were not as they have to be."""
        return sum(step.state != "present" for step in self.steps)


class Wiring:
    """The wiring of some buckets, whose queue and topic are called `name` and whose dead-letter queue `name`-dead.

    Two that run at once for one bucket can undo each other's notification, as S3 has no condition on it: run it again.
    """

    def __init__(self, messaging: AwsSpec, *, name: str, buckets: Sequence[str], prefix: str = "") -> None:
        options = messaging.boto3_options()
        session: Any = boto3.session.Session()
        self._s3, self._sns, self._sqs = (session.client(service, **options) for service in ("s3", "sns", "sqs"))
        identity = session.client("sts", **options).get_caller_identity()
        # In China and GovCloud names begin otherwise than with arn:aws.
        self._account, self.partition = identity["Account"], identity["Arn"].split(":")[1]
        self._region = options["region_name"]
        self._name = name
        self._dead = f"{name}-dead"
        self._buckets = tuple(buckets)
        self._prefix = prefix
        self.arns = WiringArns(self._arn("sqs", name), self._arn("sqs", self._dead), self._arn("sns", name))

    def wire(self, *, dry_run: bool = True) -> WiringResult:
        """Find out what is missing, and make it unless it is a dry run.

        Raises:
            ContractError: NOTIFICATION_OVERLAPS where a bucket announces the same objects elsewhere, which S3 refuses;
                raised before anything is made.
        """
        for bucket in self._buckets:
            self._notification(bucket)
        steps = []
        for kind, name, state, make in self._parts():
            steps.append(WiringStep(kind, name, state()))
            if steps[-1].state != "present" and not dry_run:
                make()
        return WiringResult(tuple(steps), self._queue_url(self._name))

    def _arn(self, service: str, name: str) -> str:
        return f"arn:{self.partition}:{service}:{self._region}:{self._account}:{name}"

    def _parts(self) -> list[tuple[str, str, Callable[[], State], Callable[[], Any]]]:
        """In the order in which they are made: each stands on those before."""
        return [
            ("queue", self._dead, self._dead_letter_state, self._make_dead_letter_queue),
            ("queue", self._name, self._queue_state, self._make_queue),
            ("topic", self._name, self._topic_state, self._make_topic),
            ("subscription", f"{self._name} to {self._name}", self._subscription_state, self._subscribe),
            *(
                ("notification", bucket, partial(self._notification_state, bucket), partial(self._announce, bucket))
                for bucket in self._buckets
            ),
        ]

    def _queue_statement(self) -> dict[str, Any]:
        return {
            **_allow("sns.amazonaws.com", "sqs:SendMessage", self.arns.queue),
            "Condition": {"ArnEquals": {"aws:SourceArn": self.arns.topic}},
        }

    def _queue_state(self) -> State:
        url = self._queue_url(self._name)
        if url is None:
            return "create"
        found = self._attributes(url)
        complete = "RedrivePolicy" in found and _has(found.get("Policy"), self._queue_statement())
        return "present" if complete else "change"

    def _make_queue(self) -> None:
        times = {"VisibilityTimeout": str(VISIBILITY_SECONDS), "MessageRetentionPeriod": str(RETENTION_SECONDS)}
        url = self._queue_url(self._name)
        url = url or self._sqs.create_queue(QueueName=self._name, Attributes=times)["QueueUrl"]
        found = self._attributes(url)
        redrive = {"deadLetterTargetArn": self.arns.dead_letters, "maxReceiveCount": MAX_RECEIVES}
        wanted = {
            "RedrivePolicy": found.get("RedrivePolicy", json.dumps(redrive)),
            "Policy": _with(found.get("Policy"), self._queue_statement()),
        }
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes=wanted)

    def _attributes(self, url: str) -> dict[str, str]:
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy", "Policy"])
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    def _topic_statement(self) -> dict[str, Any]:
        return {
            **_allow("s3.amazonaws.com", "sns:Publish", self.arns.topic),
            "Condition": {
                "ArnLike": {"aws:SourceArn": [f"arn:{self.partition}:s3:::{bucket}" for bucket in self._buckets]},
                "StringEquals": {"aws:SourceAccount": self._account},
            },
        }

    def _dead_letter_state(self) -> State:
        return "present" if self._queue_url(self._dead) else "create"

    def _make_dead_letter_queue(self) -> None:
        self._sqs.create_queue(QueueName=self._dead, Attributes={"MessageRetentionPeriod": str(RETENTION_SECONDS)})

    def _queue_url(self, name: str) -> str | None:
        try:
            return str(self._sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except ClientError as error:
            if "NonExistentQueue" in error.response["Error"]["Code"] or "QueueDoesNotExist" in str(error):
                return None
            raise

    def _topic_state(self) -> State:
        try:
            found = self._sns.get_topic_attributes(TopicArn=self.arns.topic)["Attributes"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NotFound", "NotFoundException"):
                return "create"
            raise
        return "present" if _has(found.get("Policy"), self._topic_statement()) else "change"

    def _make_topic(self) -> None:
        topic = self._sns.create_topic(Name=self._name)["TopicArn"]
        found = self._sns.get_topic_attributes(TopicArn=topic)["Attributes"].get("Policy")
        policy = _with(found, self._topic_statement())
        self._sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)

    def _subscription_state(self) -> State:
        pages = self._sns.get_paginator("list_subscriptions_by_topic")
        try:
            found = [each for page in pages.paginate(TopicArn=self.arns.topic) for each in page["Subscriptions"]]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NotFound", "NotFoundException"):
                return "create"
            raise
        return "present" if any(each["Endpoint"] == self.arns.queue for each in found) else "create"

    def _subscribe(self) -> None:
        # Not raw: the queue gets SNS's envelope around S3's message.
        self._sns.subscribe(TopicArn=self.arns.topic, Protocol="sqs", Endpoint=self.arns.queue)

    def _notification_state(self, bucket: str) -> State:
        return self._notification(bucket)[0]

    def _notification(self, bucket: str) -> tuple[State, dict[str, Any]]:
        """Whether the bucket announces to our topic, and its configuration as it has to be."""
        found = self._s3.get_bucket_notification_configuration(Bucket=bucket)
        found.pop("ResponseMetadata", None)
        ours = self._entry()
        others = [each for kind in _KINDS for each in found.get(kind, []) if each.get("Id") != ours["Id"]]
        for each in others:
            if _overlaps(each, self._prefix):
                raise ContractError(
                    "NOTIFICATION_OVERLAPS",
                    f"{each.get('Id')!r} of bucket {bucket} announces the same objects, and S3 takes one of both.",
                    hint="Subscribe the queue to the topic that entry names, or choose prefixes that do not overlap.",
                )
        topics = found.get("TopicConfigurations", [])
        mine = next((each for each in topics if each.get("Id") == ours["Id"]), None)
        state: State = "create" if mine is None else "present" if _like(mine, ours) else "change"
        kept = [each for each in topics if each.get("Id") != ours["Id"]]
        return state, {**found, "TopicConfigurations": [*kept, ours]}

    def _announce(self, bucket: str) -> None:
        _, wanted = self._notification(bucket)
        self._s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=wanted)

    def _entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "Id": f"deltaworks-{self._name}",
            "TopicArn": self.arns.topic,
            "Events": [_CREATED],
        }
        if self._prefix:
            entry["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": self._prefix}]}}
        return entry


def _allow(service: str, action: str, resource: str) -> dict[str, Any]:
    who = {"Principal": {"Service": service}, "Action": action, "Resource": resource}
    return {"Sid": "Deltaworks", "Effect": "Allow", **who}


def _has(policy: str | None, statement: Mapping[str, Any]) -> bool:
    return policy is not None and statement in json.loads(policy).get("Statement", [])


def _with(policy: str | None, statement: Mapping[str, Any]) -> str:
    """The policy with our statement in place of an earlier one of ours."""
    found: dict[str, Any] = json.loads(policy) if policy else {"Version": "2012-10-17", "Statement": []}
    others = [each for each in found["Statement"] if each.get("Sid") != statement["Sid"]]
    return json.dumps({**found, "Statement": [*others, statement]})


def _rules(entry: Mapping[str, Any]) -> dict[str, str]:
    rules = entry.get("Filter", {}).get("Key", {}).get("FilterRules", [])
    return {rule["Name"].lower(): rule["Value"] for rule in rules}


def _like(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(found.get(key) == wanted[key] for key in ("TopicArn", "Events")) and _rules(found) == _rules(wanted)


def _overlaps(other: Mapping[str, Any], prefix: str) -> bool:
    """Whether both could announce an object, which S3 refuses: ours ends in anything, so suffixes change nothing."""
    if not any(event.startswith("s3:ObjectCreated:") for event in other.get("Events", [])):
        return False
    theirs = _rules(other).get("prefix", "")
    return theirs.startswith(prefix) or prefix.startswith(theirs)
