"""The relay and its queue: timeouts, bounds, harmful settings, expired receipts, redrive, results entry by entry."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.cli import aws_resources as wire_command
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.sources.objects.relay import intake as intake_module
from deltaworks.sources.objects.relay.intake import Intake
from deltaworks.sources.objects.relay.queue import BatchOutcome, Message, NotificationQueue, queue_warnings
from deltaworks.sources.objects.relay.redrive import redrive
from deltaworks.sources.objects.relay.wiring import Wiring
from deltaworks.tables.lake import Lake
from deltaworks.testing import catalog_of
from tests.unit.sources.conftest import Landing
from tests.unit.sources.objects.relay.relay_harness import drain, keys, relay_of, running
from tests.waiting import eventually


class Recording:
    """Passes calls to SQS on and keeps the arguments of each receipt."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.receipts: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def receive_message(self, **arguments: Any) -> Any:
        self.receipts.append(arguments)
        return self._client.receive_message(**arguments)


def test_the_queues_own_timeout_applies_unless_another_is_configured(landing: Any) -> None:
    landing.returns_after(77)
    for asked, expected in ((None, 77), (123, 123)):
        queue = landing.queue(visibility_seconds=asked)
        queue._client = recording = Recording(queue._client)
        queue.receive()
        assert recording.receipts[0].get("VisibilityTimeout") == asked
        assert queue.visibility_seconds() == expected


def test_held_messages_are_bounded_until_some_are_released(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(70)))
    intake = Intake(landing.queue(), threads=3, max_in_flight=40)
    intake.start()
    eventually(lambda: len(intake.held_messages()) > 30, "messages are held")
    taken = intake.collect(max_messages=1000, timeout_seconds=0.5, wake=threading.Event())
    time.sleep(1)
    assert len(intake.held_messages()) <= 40
    assert landing.waiting()[1] <= 40
    intake.release(taken)
    eventually(lambda: len(intake.held_messages()) + len(taken) >= 70, "the rest came once there was room")
    intake.close(join_seconds=3)


def test_a_saturated_queue_is_retried_without_limit(landing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "_OVER_LIMIT_PAUSE_SECONDS", 0.1)

    class Saturated(NotificationQueue):
        refusals = 2

        def receive(self) -> list[Message]:
            if self.refusals:
                self.refusals -= 1
                raise ClientError({"Error": {"Code": "OverLimit"}}, "ReceiveMessage")
            return super().receive()

    landing.send(landing.notification("games/1"))
    queue = Saturated(landing.messaging, landing.queue_url, wait_seconds=1)
    # A patience of nothing: an outage would end the intake at once.
    intake = Intake(queue, threads=1, max_in_flight=100, retry_seconds=0)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 1, "the message is received after all")
    assert intake.saturated == 2
    assert len(intake.collect(max_messages=10, timeout_seconds=0.5, wake=threading.Event())) == 1
    intake.close(join_seconds=3)


def test_a_message_with_an_expired_receipt_is_counted_and_no_longer_extended(landing: Any) -> None:
    class Expired(NotificationQueue):
        def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
            return BatchOutcome(succeeded=len(messages) - 1, expired_receipts=(messages[0].receipt,))

    landing.send(*(landing.notification(f"games/{number}") for number in range(3)))
    intake = Intake(Expired(landing.messaging, landing.queue_url, wait_seconds=1), threads=1, max_in_flight=100)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 3, "messages are held")
    intake.visibility_seconds = 0
    intake.extend_visibility()
    assert len(intake.held_messages()) == 2
    assert (intake.extended, intake.extend_expired) == (2, 1)
    intake.close(join_seconds=3)


def test_redelivered_messages_are_counted(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(4)))
    landing.returns_after(0)
    assert len(landing.queue().receive()) == 4
    landing.returns_after(600)
    # One thread: of two that ask at once, this queue may give both the same message, which is one more delivery.
    with running(relay_of(landing, receive_threads=1)) as relay:
        eventually(lambda: relay.counts.deleted == 4, "they came again")
    assert relay.counts.redelivered == 4


def with_dead_letters(landing: Any, *, after: int) -> str:
    """Give the landing queue a dead-letter queue; its address."""
    name = landing.queue_url.rsplit("/", 1)[1] + "-dead"
    dead: str = landing.sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = landing.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": after})
    landing.sqs.set_queue_attributes(QueueUrl=landing.queue_url, Attributes={"RedrivePolicy": policy})
    return dead


def put_aside(landing: Any) -> None:
    """Receive everything and delete nothing, until the queue's own policy has made dead letters of it."""
    landing.returns_after(0)
    deliveries = landing.queue(wait_seconds=0)
    eventually(lambda: not deliveries.receive() and landing.waiting() == (0, 0), "all are dead letters")
    landing.returns_after(600)


def test_dead_letters_are_in_the_heartbeat_and_returned_by_a_redrive(landing: Any) -> None:
    with_dead_letters(landing, after=1)
    landing.send(*(landing.notification(f"games/{number}") for number in range(3)))
    put_aside(landing)
    with running(relay_of(landing)) as relay:

        def dead_letters() -> int | None:
            found = read_heartbeat(open_objects(landing.lake), relay_control("landing", "heartbeat.json"))
            return None if found is None else found.dead_letters

        eventually(lambda: dead_letters() == 3, "the heartbeat tells of them")
        shown = redrive(landing.spec(), Lake(landing.lake), landing.queue())
        assert (shown.dead_letters, shown.dead_letters_moved) == (3, 0)
        assert relay.counts.messages == 0
        assert redrive(landing.spec(), Lake(landing.lake), landing.queue(), dry_run=False).dead_letters_moved == 3
        eventually(lambda: drain(landing) and relay.counts.deleted == 3, "the relay took them")
    assert sorted(keys(landing)) == ["games/0", "games/1", "games/2"]


def test_a_quarantined_message_is_resent_only_once_the_declaration_accepts_it(landing: Any) -> None:
    other = landing.notification("games/1").replace(landing.bucket, "second")
    landing.send(other, "not json", landing.notification("games/2"))
    with running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.deleted == 3, "all are taken")
    lake = Lake(landing.lake)
    as_it_was = redrive(landing.spec(), lake, landing.queue(), dry_run=False)
    assert (as_it_was.usable, as_it_was.sent) == (0, 0)
    assert as_it_was.reasons == {"foreign_bucket": 1, "not_json": 1}
    mended = landing.spec().model_copy(update={"buckets": (landing.bucket, "second")})
    assert redrive(mended, lake, landing.queue()).usable == 1
    assert landing.waiting() == (0, 0)
    assert redrive(mended, lake, landing.queue(), dry_run=False).sent == 1
    with running(relay_of(landing, buckets=(landing.bucket, "second"))) as relay:
        eventually(lambda: relay.counts.deleted == 1, "it came again")
    assert keys(landing) == ["games/2", "games/1"]
    again = redrive(mended, Lake(landing.lake), landing.queue(), dry_run=False)
    assert (again.usable, again.sent, again.already_logged) == (0, 0, 1)


def test_the_command_shows_dead_letters_and_moves_them_only_without_dry_run(
    landing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dead_letters(landing, after=1)
    landing.send(landing.notification("games/1"), landing.notification("games/2"))
    put_aside(landing)
    with running(relay_of(landing)):
        pass  # makes the log
    places = {"lake": landing.lake, "landing": landing.storage, "messaging": landing.messaging}
    project = catalog_of(tmp_path, relays=[landing.spec()], **places)
    monkeypatch.setattr(operations, "catalog", lambda: project)
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words: str) -> str:
        return CliRunner().invoke(app, ["files", "redrive", "landing", *words], catch_exceptions=False).output

    assert "about 2 dead letters" in run()
    assert landing.waiting() == (0, 0)
    assert "Moved back: 2 dead letters" in run("--no-dry-run")
    assert landing.waiting() == (2, 0)
    assert "about 0 dead letters" in run()


class FlakyDeletes:
    """Passes batch deletes on, but fails chosen entries a number of times, as SQS does."""

    def __init__(self, client: Any, *, failures: int, sender_fault: bool = False) -> None:
        self._client = client
        self._failures = failures
        self._sender_fault = sender_fault
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(len(Entries))
        if self._failures == 0:
            return dict(self._client.delete_message_batch(QueueUrl=QueueUrl, Entries=Entries))
        self._failures -= 1
        refused, passed = Entries[:3], Entries[3:]
        answer = self._client.delete_message_batch(QueueUrl=QueueUrl, Entries=passed) if passed else {}
        failed = [{"Id": entry["Id"], "SenderFault": self._sender_fault, "Code": "X"} for entry in refused]
        return {"Successful": answer.get("Successful", []), "Failed": failed}


def receive_all(queue: Any, number: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < number:
        messages += queue.receive()
    return messages


def test_failed_entries_are_deleted_by_another_call(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(10)))
    queue = landing.queue()
    messages = receive_all(queue, 10)
    queue._client = flaky = FlakyDeletes(queue._client, failures=2)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.expired, outcome.failed) == (10, 0, 0)
    assert flaky.calls == [10, 3, 3]
    assert landing.waiting() == (0, 0)


def test_repeatedly_failing_entries_are_counted(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(4)))
    queue = landing.queue()
    messages = receive_all(queue, 4)
    queue._client = FlakyDeletes(queue._client, failures=99)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.failed) == (1, 3)


def test_an_expired_receipt_is_not_retried(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(4)))
    queue = landing.queue()
    messages = receive_all(queue, 4)
    queue._client = flaky = FlakyDeletes(queue._client, failures=1, sender_fault=True)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.expired, outcome.failed) == (1, 3, 0)
    assert flaky.calls == [4]


def put_aside_after(landing: Landing, deliveries: int, queue_url: str | None = None) -> None:
    dead = landing.sqs.create_queue(QueueName=f"{landing.bucket}-dead")["QueueUrl"]
    arn = landing.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": deliveries})
    landing.sqs.set_queue_attributes(QueueUrl=queue_url or landing.queue_url, Attributes={"RedrivePolicy": policy})


@pytest.mark.parametrize(
    ("deliveries", "visibility", "conditions"),
    [
        (2, 120, ["QUEUE_REDRIVES_EARLY"]),
        (3, 30, []),
        (5, 29, ["QUEUE_VISIBILITY_SHORT"]),
        (1, 0, ["QUEUE_REDRIVES_EARLY", "QUEUE_VISIBILITY_SHORT"]),
    ],
)
def test_harmful_settings_are_reported(
    landing: Landing, deliveries: int, visibility: int, conditions: list[str]
) -> None:
    put_aside_after(landing, deliveries)
    landing.returns_after(visibility)

    assert [each.condition for each in queue_warnings(landing.queue())] == conditions


def test_the_relays_timeout_overrides_the_queues(landing: Landing) -> None:
    landing.returns_after(5)
    assert queue_warnings(landing.queue(visibility_seconds=60)) == ()

    landing.returns_after(600)
    (warning,) = queue_warnings(landing.queue(visibility_seconds=10))
    assert "after 10 s" in str(warning)


def test_a_relay_logs_the_warnings_when_it_starts(landing: Landing, caplog: pytest.LogCaptureFixture) -> None:
    put_aside_after(landing, 1)

    with running(relay_of(landing)):
        eventually(lambda: "QUEUE_REDRIVES_EARLY" in caplog.text, "the warning")

    assert "relay=landing [QUEUE_REDRIVES_EARLY]" in caplog.text


def test_wiring_an_existing_queue_reports_the_warnings(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bucket = f"plain-{landing.bucket}"
    landing.s3.create_bucket(Bucket=bucket)
    queue_url = Wiring(landing.messaging, name=name, buckets=[bucket]).wire(dry_run=False).queue_url
    environment = SimpleNamespace(messaging=landing.messaging, lake=landing.lake)
    project: Any = SimpleNamespace(environment=environment, relay=lambda _: landing.spec(buckets=(bucket,)))
    monkeypatch.setattr(wire_command, "catalog", lambda **_: project)
    wired = ["wire", "landing", "--name", name, "--no-policies"]
    assert "QUEUE_REDRIVES_EARLY" not in CliRunner().invoke(app, wired).output

    put_aside_after(landing, 2, queue_url)

    told = CliRunner().invoke(app, wired)
    assert "QUEUE_REDRIVES_EARLY" in told.output
    assert "after 2 deliveries" in told.output
