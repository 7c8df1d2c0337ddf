"""A moto server with a landing bucket connected through SNS to a queue, with new names for every test."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest

from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.testing import local_storage
from sandbox.servers.moto_corrections import correct_moto
from tests.moto_server import running_moto

KEYS = {"DELTAWORKS_AWS_ACCESS_KEY": "testing", "DELTAWORKS_AWS_SECRET_KEY": "testing"}


@dataclass
class Landing:
    """One bucket, its queue, and a lake on local disk."""

    endpoint: str
    bucket: str
    queue_url: str
    lake: StorageSpec
    sqs: Any
    s3: Any

    @property
    def messaging(self) -> AwsSpec:
        return AwsSpec(
            endpoint=self.endpoint,
            access_key="env:DELTAWORKS_AWS_ACCESS_KEY",
            secret_key="env:DELTAWORKS_AWS_SECRET_KEY",
        )

    @property
    def storage(self) -> StorageSpec:
        return StorageSpec(root=f"s3://{self.bucket}", path_style=True, **self.messaging.model_dump())

    def returns_after(self, seconds: int) -> None:
        """Let messages received from now on, and not deleted, be delivered again after so long."""
        self.sqs.set_queue_attributes(QueueUrl=self.queue_url, Attributes={"VisibilityTimeout": str(seconds)})

    def queue(self, **options: Any) -> NotificationQueue:
        return NotificationQueue(self.messaging, self.queue_url, **{"wait_seconds": 1, **options})

    def spec(self, **changes: Any) -> RelaySpec:
        options = {"append_seconds": 0.1, "lease_ttl_seconds": 3, "max_run_seconds": 600} | changes
        options = {"relay": "landing", "queue_url": self.queue_url, "buckets": (self.bucket,)} | options
        return RelaySpec(**options)

    def put(self, *keys: str, body: bytes = b"{}") -> None:
        for key in keys:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def send(self, *bodies: str) -> None:
        for start in range(0, len(bodies), 10):
            batch = bodies[start : start + 10]
            entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(batch)]
            self.sqs.send_message_batch(QueueUrl=self.queue_url, Entries=entries)

    def notification(self, key: str, *, etag: str = "e", size: int = 2) -> str:
        found = {"key": key, "size": size, "eTag": etag}
        record = {
            "eventName": "ObjectCreated:Put",
            "eventTime": "2026-03-01T10:20:30.123Z",
            "s3": {"bucket": {"name": self.bucket}, "object": found},
        }
        return json.dumps({"Records": [record]})

    def waiting(self) -> tuple[int, int]:
        """Messages that are visible, and that are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """The address of a moto server in this process."""
    correct_moto()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    os.environ.update(KEYS)
    with running_moto() as address:
        yield address


@cache
def _client(endpoint: str, service: str) -> Any:
    """One for all tests: making a client costs more than most tests."""
    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


@pytest.fixture
def landing(aws_endpoint: str, tmp_path: Path) -> Landing:
    """A landing bucket of this test's own. No message comes back within a test, unless the test says when."""
    name = f"landing-{uuid.uuid4().hex[:8]}"
    s3, sns, sqs = (_client(aws_endpoint, service) for service in ("s3", "sns", "sqs"))
    queue_url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = sns.create_topic(Name=name)["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    s3.create_bucket(Bucket=name)
    wiring = {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=wiring)
    sqs.purge_queue(QueueUrl=queue_url)  # of the test event that wiring sends
    lake = local_storage(tmp_path / "lake")
    return Landing(aws_endpoint, name, queue_url, lake, sqs, s3)
