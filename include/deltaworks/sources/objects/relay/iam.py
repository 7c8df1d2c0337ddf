"""The least a relay and the streams behind it must be allowed on AWS, as IAM policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import StorageSpec

_LAKE_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


def relay_policy(
    relay: RelaySpec, lake: StorageSpec, *, queue_arn: str, dead_letter_arn: str, partition: str = "aws"
) -> dict[str, Any]:
    """What the relay's role needs: its queues, its buckets' listing where it lists them, and the lake."""
    taking = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
    watching = ("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage")
    statements = [_allow("Queues", (*taking, *watching), [queue_arn, dead_letter_arn])]
    if relay.listing is not None:
        listing = "s3:ListBucketVersions" if relay.overwrites == "every_version" else "s3:ListBucket"
        statements.append(_allow("Listing", (listing,), [f"arn:{partition}:s3:::{bucket}" for bucket in relay.buckets]))
    return _policy([*statements, *_lake(lake, partition)])


def stream_policy(relay: RelaySpec, lake: StorageSpec, *, partition: str = "aws") -> dict[str, Any]:
    """What the role of streams and maintenance needs: to read what has landed, and the lake."""
    buckets = [f"arn:{partition}:s3:::{bucket}" for bucket in relay.buckets]
    reading = ("s3:GetObject", "s3:GetObjectVersion") if relay.overwrites == "every_version" else ("s3:GetObject",)
    return _policy(
        [
            _allow("Landed", reading, [f"{bucket}/*" for bucket in buckets]),
            # Without it S3 says of an object that is gone that it is forbidden.
            _allow("Gone", ("s3:ListBucket",), buckets),
            # How much time is left to read what waits.
            _allow("Kept", ("s3:GetLifecycleConfiguration",), buckets),
            *_lake(lake, partition),
        ]
    )


def wiring_policy(
    buckets: Sequence[str], *, queue_arn: str, dead_letter_arn: str, topic_arn: str, partition: str = "aws"
) -> dict[str, Any]:
    """What whoever wires the buckets needs, once."""
    queues = ("sqs:CreateQueue", "sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:SetQueueAttributes")
    topic = ("sns:CreateTopic", "sns:GetTopicAttributes", "sns:SetTopicAttributes", "sns:Subscribe")
    return _policy(
        [
            _allow("Queues", queues, [queue_arn, dead_letter_arn]),
            _allow("Topic", (*topic, "sns:ListSubscriptionsByTopic"), [topic_arn]),
            _allow(
                "Announcing",
                ("s3:GetBucketNotification", "s3:PutBucketNotification"),
                [f"arn:{partition}:s3:::{bucket}" for bucket in buckets],
            ),
        ]
    )


def _lake(lake: StorageSpec, partition: str) -> list[dict[str, Any]]:
    bucket, below = f"arn:{partition}:s3:::{lake.bucket}", f"{lake.prefix}/*" if lake.prefix else "*"
    listing = _allow("LakeListing", ("s3:ListBucket",), [bucket])
    if lake.prefix:
        listing["Condition"] = {"StringLike": {"s3:prefix": [lake.prefix, below]}}
    return [_allow("Lake", _LAKE_OBJECTS, [f"{bucket}/{below}"]), listing]


def _allow(name: str, actions: Sequence[str], resources: Sequence[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}
