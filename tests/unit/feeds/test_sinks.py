"""Sinks over the wire: queues and topics of a real server, and a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.sinks import Sink, open_sink
from deltaworks.specs.feeds import SnsSinkSpec, SqsSinkSpec, WebhookSinkSpec
from deltaworks.specs.storage import AwsSpec
from tests.http_server import HttpAnswer, HttpRequest, http_server
from tests.unit.alerts.aws_harness import Aws


def messages(count: int, *, size: int = 10, key: str = "k") -> list[Message]:
    return [
        Message(
            id=f"{number:032x}",
            key=f"{key}{number}",
            op="upsert",
            feed="shop.offers",
            body=json.dumps({"id": f"{number:032x}", "text": "x" * size}).encode(),
        )
        for number in range(count)
    ]


def bodies(aws: Aws, queue: str) -> list[dict[str, Any]]:
    sqs, taken = aws.client("sqs"), []
    while batch := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"]).get(
        "Messages"
    ):
        for message in batch:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            taken.append(message)
    return taken


def test_every_message_is_in_the_queue_with_its_filter_attributes(aws: Aws) -> None:
    queue = aws.queue()
    sent = messages(37)
    outcome = open_sink(SqsSinkSpec(kind="sqs", queue_url=queue), aws.messaging).send(sent)
    assert (outcome.rejected, outcome.failed) == ({}, {})
    taken = bodies(aws, queue)
    assert sorted(json.loads(message["Body"])["id"] for message in taken) == [message.id for message in sent]
    assert taken[0]["MessageAttributes"]["feed"]["StringValue"] == "shop.offers"


def test_a_message_too_large_for_its_queue_is_rejected_and_the_rest_arrives(aws: Aws) -> None:
    queue = aws.queue()
    aws.client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "2048"})
    large = messages(1, size=5000, key="large")
    large[0] = Message(**{**{name: getattr(large[0], name) for name in Message.__slots__}, "id": "f" * 32})
    outcome = open_sink(SqsSinkSpec(kind="sqs", queue_url=queue), aws.messaging).send([*messages(3), *large])
    assert {name: reason for name, (reason, _) in outcome.rejected.items()} == {"f" * 32: DeadReason.TOO_LARGE}
    assert len(bodies(aws, queue)) == 3


def test_a_fifo_queue_orders_by_key_and_drops_duplicates(aws: Aws) -> None:
    queue = aws.queue(fifo=True)
    sink = open_sink(SqsSinkSpec(kind="sqs", queue_url=queue), aws.messaging)
    for _ in range(2):
        assert not sink.send(messages(5)).failed
    assert len(bodies(aws, queue)) == 5


def test_a_missing_queue_is_a_configuration_error(aws: Aws) -> None:
    with pytest.raises(ConfigError, match="FEED_SINK_REFUSED"):
        open_sink(SqsSinkSpec(kind="sqs", queue_url=f"{aws.endpoint}/123456789012/nobody"), aws.messaging)


def test_an_unreachable_server_fails_messages_without_dead_letters(aws: Aws) -> None:
    nobody = AwsSpec(endpoint="http://127.0.0.1:9", access_key="env:TEST_ACCESS_KEY", secret_key="env:TEST_SECRET_KEY")
    outcome = open_sink(SnsSinkSpec(kind="sns", topic="arn:aws:sns:us-east-1:123456789012:t"), nobody).send(
        messages(12)
    )
    assert (len(outcome.failed), outcome.rejected) == (12, {})


def test_a_topic_delivers_each_message_to_its_queues(aws: Aws) -> None:
    topic, queue = aws.topic(), aws.queue()
    aws.subscribe(topic, queue)
    outcome = open_sink(SnsSinkSpec(kind="sns", topic=topic), aws.messaging).send(messages(12))
    assert not outcome.failed
    assert sorted(message["id"] for message in aws.received(queue)) == [message.id for message in messages(12)]


def test_a_failed_entry_of_a_batch_is_the_only_failed_message(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = aws.queue()
    sink: Any = open_sink(SqsSinkSpec(kind="sqs", queue_url=queue), aws.messaging)
    call = sink.call

    def partly(entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer = call(entries[1:])
        failed = {"Id": entries[0]["Id"], "SenderFault": False, "Code": "InternalError", "Message": "later"}
        return {**answer, "Failed": [failed]}

    monkeypatch.setattr(sink, "call", partly)
    outcome = sink.send(messages(10))
    assert list(outcome.failed) == [messages(1)[0].id]
    assert len(bodies(aws, queue)) == 9


class Receiver:
    """A webhook server with configurable responses."""

    url: str

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, Any]] = lambda body: (200, {})

    def __call__(self, request: HttpRequest) -> HttpAnswer:
        self.calls.append((request.json(), dict(request.headers)))
        return self.answer(request.json())

    def sink(self, **more: Any) -> Sink:
        spec = WebhookSinkSpec.model_validate({"kind": "webhook", "url": self.url, "rows_per_call": 10, **more})
        return open_sink(spec, AwsSpec())

    def received(self) -> list[str]:
        return [change["id"] for body, _ in self.calls for change in body["changes"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    with http_server(running) as address:
        running.url = f"{address}/changes"
        yield running


def test_a_webhook_gets_several_changes_per_call_with_an_idempotency_key(receiver: Receiver) -> None:
    receiver.sink().send(messages(25))
    assert [len(body["changes"]) for body, _ in receiver.calls] == [10, 10, 5]
    names = [headers["Idempotency-Key"] for _, headers in receiver.calls]
    receiver.sink().send(messages(25))
    assert [headers["Idempotency-Key"] for _, headers in receiver.calls[3:]] == names


def test_only_messages_that_the_receiver_lists_as_failed_have_failed(receiver: Receiver) -> None:
    receiver.answer = lambda body: (200, {"failed": [body["changes"][1]["id"], "nobody"]})
    outcome = receiver.sink().send(messages(10))
    assert list(outcome.failed) == [messages(2)[1].id]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failing_receiver_is_retried(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda body: (status, {})
    assert len(receiver.sink().send(messages(10)).failed) == 10


def test_a_rejected_change_does_not_delay_others(receiver: Receiver) -> None:
    bad = messages(10)[6].id
    receiver.answer = lambda body: (422 if any(change["id"] == bad for change in body["changes"]) else 200, {})
    outcome = receiver.sink().send(messages(10))
    assert {name: reason for name, (reason, _) in outcome.rejected.items()} == {bad: DeadReason.REFUSED}
    assert not outcome.failed


def test_an_unauthorized_webhook_is_a_configuration_error_without_its_address(receiver: Receiver) -> None:
    receiver.answer = lambda body: (401, {})
    with pytest.raises(ConfigError, match="FEED_SINK_REFUSED") as error:
        receiver.sink().send(messages(10))
    assert receiver.url not in str(error.value)
