"""Queues that deliver twice, out of order, late, in part or never; all kinds of messages; relays that are killed."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.sources.objects.file_event_log import message_quarantine_key
from deltaworks.sources.objects.relay import relay as relay_module
from deltaworks.sources.objects.relay.intake import Intake
from deltaworks.sources.objects.relay.redrive import redrive
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, write_project
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy
from tests.faults.files.conftest import Tell
from tests.faults.harness import relay_entry
from tests.faults.harness.file_log_verdict import proxied_landing
from tests.faults.harness.file_protections import switch_off
from tests.unit.sources.objects.relay.relay_harness import keys, relay_of, running
from tests.waiting import eventually

Patch = pytest.MonkeyPatch


def invisible_for(landing: Any, seconds: int, **attributes: str) -> None:
    landing.sqs.set_queue_attributes(
        QueueUrl=landing.queue_url, Attributes={"VisibilityTimeout": str(seconds), **attributes}
    )


def drained(landing: Any) -> bool:
    return bool(landing.waiting() == (0, 0))


@contextmanager
def off(names: list[str]) -> Iterator[None]:
    """Disables protections inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch, names)
        yield


@pytest.mark.parametrize("without", [[], ["identity"], ["one_relay"]], ids=["protected", "identity", "one_relay"])
def test_18_every_message_three_times_shuffled_and_two_relays(
    landing: Any, report_files_fault: Tell, without: list[str]
) -> None:
    invisible_for(landing, 30)
    names = [f"games/{number}" for number in range(200)]
    bodies = [landing.notification(name) for name in names] * 3
    random.Random(18).shuffle(bodies)
    landing.send(*bodies)
    refused: list[Exception] = []

    def second() -> None:
        try:
            relay_of(landing, lease_wait_seconds=0.5, max_events_per_append=20).run()
        except DeltaworksError as error:
            refused.append(error)

    with off(without):
        first = threading.Thread(target=_run_quietly, args=(relay_of(landing, max_events_per_append=20),), daemon=True)
        first.start()
        eventually(lambda: bool(keys(landing)), "the first works")
        other = threading.Thread(target=second, daemon=True)
        other.start()
        eventually(lambda: drained(landing), "the queue is empty")
        _stop_all()
        first.join(20)
        other.join(20)
    condition = refused[0].condition if refused else "none was refused"
    verdict = report_files_fault("18 three deliveries, two relays", names, off=", ".join(without), note=condition)
    assert verdict.is_exact == (not without)
    assert (condition == "LEASE_HELD") == (without != ["one_relay"])


_RUNNING: list[Relay] = []


def _run_quietly(relay: Relay) -> None:
    _RUNNING.append(relay)
    try:
        relay.run()
    except Exception:  # the files' outcome is judged by the log
        return


def _stop_all() -> None:
    while _RUNNING:
        _RUNNING.pop().stop()


POISON = [
    '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}',
    "no json at all",
    "{}",
    '{"Records": []}',
    '{"Records": [{"eventSource": "aws:sqs", "body": "x"}]}',
    '{"Type": "SubscriptionConfirmation", "TopicArn": "t", "Message": "m", "Token": "x"}',
]


@pytest.mark.parametrize("without", [[], ["message_quarantine"]], ids=["protected", "without"])
def test_19_messages_of_every_kind_stop_nothing_and_do_not_vanish(
    landing: Any, report_files_fault: Tell, without: list[str]
) -> None:
    raw = landing.notification("games/raw")
    wrapped = json.dumps({"Type": "Notification", "TopicArn": "t", "Message": landing.notification("games/wrapped")})
    foreign = landing.notification("games/foreign").replace(landing.bucket, "foreign")
    landing.send(*POISON, raw, foreign, wrapped)
    with off(without), running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.deleted == len(POISON) + 3, "all are taken")
    rows = Lake(landing.lake).rows(message_quarantine_key("landing"))
    held = [] if rows is None else rows.column("body").to_pylist()
    # Every message except S3's test message must have a row with the reason it could not be used.
    vanished = {*POISON[1:], foreign} - set(held)
    note = f"messages that vanished {len(vanished)} of {len(POISON)}"
    verdict = report_files_fault("19 poison", ["games/raw", "games/wrapped"], off=", ".join(without), note=note)
    assert verdict.is_exact
    assert bool(vanished) == bool(without)


@pytest.mark.parametrize("without", [[], ["visibility"]], ids=["protected", "without"])
def test_24_messages_held_for_longer_than_their_timeout_do_not_come_again(
    landing: Any, proxy: FaultProxy, report_files_fault: Tell, without: list[str]
) -> None:
    """A commit of the log takes five seconds, the visibility timeout is two, and a third delivery goes to the dead
    letters.
    """
    names = [f"games/{number}" for number in range(40)]
    dead = dead_letter_queue(landing)
    policy = json.dumps({"deadLetterTargetArn": dead[1], "maxReceiveCount": 2})
    invisible_for(landing, 2, RedrivePolicy=policy)
    landing.send(*(landing.notification(name) for name in names))
    slow = slow_lake(landing, proxy, seconds=5)
    with off(without), running(relay_of(slow, max_events_per_append=10)) as relay:
        eventually(lambda: relay.counts.deleted >= len(names) or sum(landing.waiting()) == 0, "the queue is empty")
    dead_letters = waiting_in(landing, dead[0])
    note = f"redelivered {relay.counts.redelivered}, dead letters {dead_letters}, extended {relay.counts.extended}"
    landing.lake = slow.lake
    verdict = report_files_fault("24 visibility", names, off=", ".join(without), note=note)
    assert not verdict.doubled
    assert (relay.counts.redelivered == 0) == (not without)
    assert (dead_letters == 0) == (not without)
    assert (relay.counts.extended > 0) == (not without)


def slow_lake(landing: Any, proxy: FaultProxy, *, seconds: float) -> Any:
    """A lake in a bucket behind the proxy, which delays commits of the log."""
    bucket = landing.bucket + "-lake"
    landing.s3.create_bucket(Bucket=bucket)
    proxy.faults = [
        Fault(action=Action.DELAY, method="PUT", path=r"file_events/_delta_log/0+[2-9]\d*\.json", delay_seconds=seconds)
    ]
    slow = proxied_landing(landing, proxy)
    slow.lake = slow.storage.of_bucket(bucket)
    slow.queue_url, slow.endpoint = landing.queue_url, landing.endpoint
    return slow


def dead_letter_queue(landing: Any) -> tuple[str, str]:
    """Creates a dead-letter queue; returns its URL and its ARN."""
    url = landing.sqs.create_queue(QueueName=landing.queue_url.rsplit("/", 1)[1] + "-dead")["QueueUrl"]
    found = landing.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return url, found["Attributes"]["QueueArn"]


def waiting_in(landing: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = landing.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


@pytest.mark.parametrize("without", [[], ["entries"]], ids=["protected", "without"])
def test_26_entries_of_batch_calls_that_fail_are_sent_again(
    landing: Any, proxy: FaultProxy, report_files_fault: Tell, without: list[str]
) -> None:
    """Half of the entries of each batch call fail, both of deletions and of redriven messages."""
    names = [f"games/{number}" for number in range(40)]
    dead_url, dead_arn = dead_letter_queue(landing)
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": 5}
    invisible_for(landing, 30, RedrivePolicy=json.dumps(policy))
    for start in range(0, 40, 10):
        entries = [{"Id": str(n), "MessageBody": landing.notification(names[n])} for n in range(start, start + 10)]
        landing.sqs.send_message_batch(QueueUrl=dead_url, Entries=entries)
    proxy.faults = [
        Fault(action=Action.FAIL_ENTRIES, operation="SendMessageBatch", every=2),
        Fault(action=Action.FAIL_ENTRIES, operation="DeleteMessageBatch", every=2),
    ]
    hit = proxied_landing(landing, proxy)
    with off(without):
        moved = redrive(hit.spec(), Lake(hit.lake), hit.queue(), dry_run=False).dead_letters_moved
        with running(relay_of(hit)) as relay:
            eventually(lambda: not landing.waiting()[0] and relay.counts.messages > 0, "what was sent is taken")
            time.sleep(2)
    left = sum(landing.waiting())
    note = f"batch calls with failures {len(proxy.incidents)}, told moved {moved}, messages left behind {left}"
    verdict = report_files_fault("26 part of a batch", names, off=", ".join(without), note=note)
    assert len(proxy.incidents) > 3
    assert verdict.is_exact == (not without)
    assert bool(left) == bool(without)


@pytest.mark.parametrize("without", [[], ["dead_letter_watch"]], ids=["protected", "without"])
def test_27_dead_letters_raise_an_alert_and_come_back_by_a_redrive(
    landing: Any, report_files_fault: Tell, without: list[str]
) -> None:
    names = [f"games/{number}" for number in range(12)]
    _, dead_arn = dead_letter_queue(landing)
    invisible_for(landing, 1, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1}))
    landing.send(*(landing.notification(name) for name in names))
    stranger = landing.queue()
    # A consumer receives every message and never deletes one.
    eventually(lambda: not stranger.receive() and drained(landing), "all are dead letters")
    with off(without), running(relay_of(landing)) as relay:
        objects, key = open_objects(landing.lake), relay_control("landing", "heartbeat.json")
        eventually(
            lambda: (found := read_heartbeat(objects, key)) is not None and found.backlog_files is not None, "it looks"
        )
        told = alert_of(landing)
        moved = redrive(landing.spec(), Lake(landing.lake), landing.queue(), dry_run=False).dead_letters_moved
        if moved:
            eventually(lambda: relay.counts.deleted == len(names), "they are taken")
    note = f"alert {told}, moved {moved}"
    verdict = report_files_fault("27 dead letters", names, off=", ".join(without), note=note)
    assert verdict.is_exact == (not without)
    assert (told == "DEAD_LETTERS") == (not without)


def alert_of(landing: Any) -> str:
    """Returns the alert cause that the health check finds for the relay; empty if it is healthy."""
    heartbeat = present(read_heartbeat(open_objects(landing.lake), relay_control("landing", "heartbeat.json")))
    return evaluate_health(heartbeat, None, kind="relay", name="landing", now=utc_now()).cause


@pytest.mark.parametrize("without", [[], ["patience"]], ids=["protected", "without"])
def test_28_a_queue_that_throttles_fails_and_answers_late_is_waited_for(
    landing: Any, proxy: FaultProxy, report_files_fault: Tell, without: list[str]
) -> None:
    names = [f"games/{number}" for number in range(60)]
    invisible_for(landing, 30)
    landing.send(*(landing.notification(name) for name in names))
    receive: dict[str, Any] = {"operation": "ReceiveMessage"}
    proxy.faults = [Fault(action=Action.REFUSE, code="ServiceUnavailable", **receive)]
    afterwards = [
        Fault(action=Action.REFUSE, status=500, code="InternalError", operation="DeleteMessageBatch", every=2),
        Fault(action=Action.REFUSE, status=403, code="RequestThrottled", probability=0.3, **receive),
    ]
    later = [
        Fault(action=Action.CUT_SHORT, probability=0.5, **receive),
        Fault(action=Action.DELAY, delay_seconds=5, every=2, operation="DeleteMessageBatch"),
    ]
    timers = [_later(4, proxy, afterwards), _later(8, proxy, later)]
    hit = proxied_landing(landing, proxy)
    failure = ""
    with off(without):
        try:
            with running(relay_of(hit)) as relay:
                eventually(lambda: drained(landing) or relay._stop.is_set(), "the queue is empty")
                landing.send(landing.notification("games/late"))
                time.sleep(6)
                eventually(lambda: drained(landing) or relay._stop.is_set(), "the queue is empty again")
        except Exception as error:
            failure = type(error).__name__ if not isinstance(error, DeltaworksError) else error.condition
    for timer in timers:
        timer.cancel()
    kinds = sorted({str(incident.action) for incident in proxy.incidents})
    note = f"faults {len(proxy.incidents)} ({', '.join(kinds)}), relay ended with {failure or 'nothing'}"
    verdict = report_files_fault("28 queue", [*names, "games/late"], off=", ".join(without), note=note)
    assert verdict.is_exact == (not without)
    assert bool(failure) == bool(without)


def _later(seconds: float, proxy: FaultProxy, faults: list[Fault]) -> threading.Timer:
    """Changes a proxy's faults after a delay."""
    timer = threading.Timer(seconds, lambda: setattr(proxy, "faults", faults))
    timer.start()
    return timer


def test_28_an_outage_and_a_refusal_are_told_apart(
    landing: Any, proxy: FaultProxy, print_result: Callable[..., None], monkeypatch: Patch
) -> None:
    """A 503 that outlasts the relay's retries ends the run and the next one retries; a 403 is a configuration error."""
    monkeypatch.setattr(relay_module, "Intake", functools.partial(Intake, retry_seconds=2))
    hit = proxied_landing(landing, proxy)
    receive: dict[str, Any] = {"operation": "ReceiveMessage"}
    found = {}
    for status, code in ((503, "ServiceUnavailable"), (403, "AccessDenied")):
        proxy.faults = [Fault(action=Action.REFUSE, status=status, code=code, **receive)]
        with pytest.raises(DeltaworksError) as raised:
            relay_of(hit).run()
        found[status] = raised.value
    print_result("28 403 and 5xx", *(f"{status}: {error.condition}" for status, error in found.items()))
    assert isinstance(found[503], TransientError)
    assert (found[503].condition, found[503].retryable) == ("RELAY_OUTAGE", True)
    assert isinstance(found[403], ConfigError)
    assert (found[403].condition, found[403].retryable) == ("QUEUE_REFUSED", False)


@pytest.mark.parametrize("without", [[], ["refusals"]], ids=["protected", "without"])
def test_29_a_queue_that_is_gone_ends_the_relay_instead_of_being_asked_without_pause(
    landing: Any, proxy: FaultProxy, print_result: Callable[..., None], without: list[str]
) -> None:
    proxy.faults = [Fault(action=Action.DELAY, operation="ReceiveMessage")]  # only counted
    hit = proxied_landing(landing, proxy)
    ended: list[Exception] = []

    def run(relay: Relay) -> None:
        try:
            relay.run()
        except Exception as error:
            ended.append(error)

    with off(without):
        relay = relay_of(hit)
        thread = threading.Thread(target=run, args=(relay,), daemon=True)
        thread.start()
        eventually(lambda: len(proxy.incidents) > 0, "it receives")
        landing.sqs.delete_queue(QueueUrl=landing.queue_url)
        before = len(proxy.incidents)
        thread.join(12)
        asked = len(proxy.incidents) - before
        relay.stop(immediately=True)
        thread.join(30)
    told = alert_of(landing)
    condition = ended[0].condition if ended and isinstance(ended[0], DeltaworksError) else "it never ended"
    print_result(
        "29 queue gone", f"WITHOUT {', '.join(without)}" if without else "protected", condition, f"asked {asked} times"
    )
    assert (condition == "QUEUE_REFUSED") == (not without)
    assert (told == "QUEUE_REFUSED") == (not without)
    assert (asked <= 4) == (not without)


NAMES = [f"games/{number}" for number in range(80)]
Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(landing: Any, proxy: FaultProxy, tmp_path: Path) -> Iterator[Launch]:
    """Starts relay processes of a project whose queue and lake are behind the proxy; ends the remaining ones."""
    started: list[subprocess.Popen[bytes]] = []
    hit = proxied_landing(landing, proxy)
    bucket = landing.bucket + "-lake"
    landing.s3.create_bucket(Bucket=bucket)
    reached = hit.messaging.model_dump(mode="json", exclude_none=True)
    environment = {
        "lake": {"root": f"s3://{bucket}/lake", "path_style": True} | reached,
        "landing": {"root": f"s3://{landing.bucket}", "path_style": True} | reached,
        "messaging": reached,
    }
    relay = {
        "relay": "landing",
        "queue_url": hit.queue_url,
        "buckets": [landing.bucket],
        "append_seconds": 0.2,
        "max_events_per_append": 20,
        "lease_ttl_seconds": 3,
        "max_run_seconds": 60,
    }
    write_project(tmp_path, environment=environment, relays=[relay])
    landing.lake = landing.storage.of_bucket(bucket).model_copy(update={"root": f"s3://{bucket}/lake"})

    def start(*, off: str = "") -> subprocess.Popen[bytes]:
        known = {
            "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)]),
            "DELTAWORKS_PROJECT": str(tmp_path),
            "DELTAWORKS_ENVIRONMENT": "local",
            relay_entry.OFF: off,
        }
        words = [sys.executable, "-m", "tests.faults.harness.relay_entry", "--relay", "landing"]
        with (tmp_path / f"relay-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(words, env={**os.environ, **known}, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(20)


@pytest.mark.parametrize("without", ["", "identity"], ids=["protected", "without"])
def test_25_killed_between_commit_and_deletion(
    landing: Any, proxy: FaultProxy, launch: Launch, report_files_fault: Tell, without: str
) -> None:
    landing.returns_after(4)
    landing.send(*(landing.notification(name) for name in NAMES))
    proxy.faults = [Fault(action=Action.DELAY, operation="DeleteMessageBatch", delay_seconds=600)]
    first = launch(off=without)
    eventually(lambda: bool(keys(landing)), "an append is in the log, and its messages are not deleted")
    first.kill()
    first.wait(20)
    committed = len(keys(landing))
    proxy.faults = []
    launch(off=without)
    eventually(lambda: landing.waiting() == (0, 0), "the messages came again and are gone")
    note = f"in the log when it was killed: {committed}"
    verdict = report_files_fault("25 killed before the deletion", NAMES, off=without, note=note)
    assert verdict.is_exact == (not without)
    assert verdict.doubled.total() == (committed if without else 0)


@pytest.mark.parametrize("without", ["", "append_first"], ids=["protected", "without"])
def test_25_killed_while_the_commit_is_on_its_way(
    landing: Any, proxy: FaultProxy, launch: Launch, report_files_fault: Tell, without: str
) -> None:
    """The commit arrives seconds after its process was killed, when the successor already runs."""
    landing.returns_after(4)
    landing.send(*(landing.notification(name) for name in NAMES))
    commits = r"file_events/_delta_log/0+[2-9]\d*\.json"
    proxy.faults = [Fault(action=Action.DELAY, method="PUT", path=commits, delay_seconds=20, times=1)]
    first = launch(off=without)
    eventually(lambda: bool(proxy.incidents), "a commit is on its way")
    first.kill()
    first.wait(20)
    launch()
    eventually(lambda: landing.waiting() == (0, 0) and bool(keys(landing)), "the messages came again and are gone")
    verdict = report_files_fault("25 killed during the commit", NAMES, off=without)
    assert verdict.is_exact == (not without)
    assert bool(verdict.lost) == bool(without)
