"""SNS topics with subscribed SQS queues on a local server, and the messages in them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from deltaworks.control.objects import aws_session
from deltaworks.specs.storage import AwsSpec
from sandbox.servers.moto_corrections import correct_moto
from tests.moto_server import running_moto


@contextmanager
def running_aws() -> Iterator[str]:
    """Runs a server with SNS and SQS; yields its address."""
    correct_moto()
    with running_moto() as address:
        yield address


@dataclass
class Aws:
    """Client of the server, over HTTP."""

    endpoint: str
    _clients: dict[str, Any] = field(default_factory=dict)

    @property
    def messaging(self) -> AwsSpec:
        return AwsSpec(endpoint=self.endpoint, access_key="env:TEST_ACCESS_KEY", secret_key="env:TEST_SECRET_KEY")

    @classmethod
    def at(cls, address: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
        """Connects to the server, with credentials in the declared variables."""
        monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
        monkeypatch.setenv("TEST_SECRET_KEY", "testing")
        return cls(address)

    def client(self, service: Any) -> Any:
        if service not in self._clients:
            self._clients[service] = self._opened(service)
        return self._clients[service]

    def _opened(self, service: Any) -> Any:
        return aws_session().client(service, **self.messaging.boto3_options())

    def topic(self, *, fifo: bool = False) -> str:
        name = f"alerts-{uuid.uuid4().hex[:8]}"
        if fifo:
            return str(
                self.client("sns").create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
            )
        return str(self.client("sns").create_topic(Name=name)["TopicArn"])

    def queue(self, *, fifo: bool = False) -> str:
        name = f"people-{uuid.uuid4().hex[:8]}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        return str(self.client("sqs").create_queue(QueueName=name + ".fifo" * fifo, Attributes=attributes)["QueueUrl"])

    def arn(self, queue_url: str) -> str:
        answer = self.client("sqs").get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def subscribe(self, topic: str, queue_url: str, *, dead_letters: str | None = None) -> str:
        attributes = {} if dead_letters is None else {
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": self.arn(dead_letters)})
        }  # fmt: skip
        answer = self.client("sns").subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=self.arn(queue_url),
            Attributes=attributes,
            ReturnSubscriptionArn=True,
        )
        return str(answer["SubscriptionArn"])

    def received(self, queue_url: str) -> list[dict[str, Any]]:
        """Receives and deletes all notifications in the queue, oldest first, unwrapped from their SNS envelope."""
        sqs, found = self.client("sqs"), []
        while messages := sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
                found.append(json.loads(json.loads(message["Body"])["Message"]))
        return found
