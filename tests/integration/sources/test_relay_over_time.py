"""The relay over time and as the process Airflow launches: outages, leases, its run limit, exit codes, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.errors import FencedError
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, PendingAppend
from deltaworks.sources.objects.relay.intake import Intake
from deltaworks.sources.objects.relay.queue import Message, NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, write_project
from tests.unit.sources.objects.relay.relay_harness import drain, keys, relay_of, running
from tests.waiting import PATIENCE_SECONDS, eventually


def test_messages_stay_invisible_during_an_outage_of_the_log(landing: Any) -> None:
    class AwayForAWhile(FileEventLogWriter):
        back_at = 0.0

        def commit(self, pending: PendingAppend) -> None:
            self.back_at = self.back_at or time.monotonic() + 2.5
            if time.monotonic() < self.back_at:
                raise OSError("503 SlowDown")
            super().commit(pending)

    def open_away(lake: Lake, relay: str, epoch: int) -> FileEventLogWriter:
        return AwayForAWhile(lake, relay, epoch=epoch)

    received: list[str] = []

    class Counting(NotificationQueue):
        def receive(self) -> list[Message]:
            messages = super().receive()
            received.extend(message.message_id for message in messages)
            return messages

    counting = Counting(landing.messaging, landing.queue_url, wait_seconds=1)
    landing.returns_after(1)
    landing.send(*(landing.notification(f"games/{number}") for number in range(5)))
    with running(relay_of(landing, open_log=open_away, queue=counting)) as relay:
        eventually(lambda: relay.counts.deleted == 5, "the log came back")
    assert relay.counts.duplicates == 0
    assert len(received) == len(set(received)) == 5


def test_a_second_relay_waits_for_the_lease_and_continues(landing: Any) -> None:
    landing.send(landing.notification("games/1"))
    second = relay_of(landing, lease_wait_seconds=PATIENCE_SECONDS)
    thread = threading.Thread(target=second.run, daemon=True)
    with running(relay_of(landing)) as first:
        eventually(lambda: first.counts.deleted == 1, "the first works")
        thread.start()
        time.sleep(1.5)
        assert second.counts.messages == 0
    landing.send(landing.notification("games/2"))
    eventually(lambda: second.counts.deleted == 1, "the second took over")
    second.stop()
    thread.join(timeout=PATIENCE_SECONDS)
    assert keys(landing) == ["games/1", "games/2"]


def test_a_relay_that_loses_its_lease_ends(landing: Any) -> None:
    objects = open_objects(landing.lake)
    relay = relay_of(landing)
    with pytest.raises(FencedError, match="LEASE_LOST"), running(relay):  # noqa: PT012
        eventually(lambda: objects.get(relay_control("landing", "heartbeat.json")) is not None, "a heartbeat")
        taken = json.loads(objects.get(relay_control("landing", "lease.json")).data)  # type: ignore[union-attr]
        taken |= {"owner": "somebody else", "epoch": taken["epoch"] + 1}
        objects.put(relay_control("landing", "lease.json"), json.dumps(taken).encode())
        eventually(relay._stop.is_set, "the relay noticed")


def test_a_stop_request_ends_the_relay_and_its_heartbeat_reports_it(landing: Any) -> None:
    objects = open_objects(landing.lake)
    landing.send(landing.notification("games/1"))
    relay = relay_of(landing)
    with running(relay):
        eventually(lambda: relay.counts.deleted == 1, "it works")
        StopFlag(objects, relay_control("landing", "stop.json")).set(by="a test", reason="to see it end")
        eventually(relay._stop.is_set, "it noticed")
    heartbeat = present(read_heartbeat(objects, relay_control("landing", "heartbeat.json")))
    assert (heartbeat.state, heartbeat.rows, heartbeat.batch_id) == ("ended", 1, 1)
    assert heartbeat.backlog_files in (0, 1)


def test_a_relay_ends_at_its_run_limit(landing: Any) -> None:
    started = time.monotonic()
    spec = landing.spec().model_copy(update={"max_run_seconds": 1})
    counts = Relay(spec, lake=landing.lake, queue=landing.queue()).run()
    assert counts.messages == 0
    assert time.monotonic() - started < 8


def test_the_intake_extends_messages_held_for_half_their_time(landing: Any) -> None:
    landing.returns_after(2)
    landing.send(*(landing.notification(f"games/{number}") for number in range(3)))
    intake = Intake(landing.queue(), threads=1, max_in_flight=100)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 3, "all are held")
    time.sleep(4)
    assert len(intake.held_messages()) == 3
    assert landing.waiting() == (0, 3)
    assert intake.extended >= 3
    intake.release(intake.held_messages())
    assert intake.held_messages() == []
    intake.close(join_seconds=3)


def test_a_full_buffer_stops_receiving(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(80)))
    intake = Intake(landing.queue(), threads=1, max_in_flight=20)
    intake.start()
    time.sleep(2)
    held = len(intake.held_messages())
    assert 20 <= held <= 30
    assert sum(landing.waiting()) == 80
    assert len(intake.close(join_seconds=3)) >= held


def test_messages_that_waited_long_are_collected_together(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(40)))
    intake = Intake(landing.queue(), threads=2, max_in_flight=100)
    intake.start()
    eventually(lambda: len(intake.held_messages()) == 40, "all are held")
    time.sleep(0.5)
    taken = intake.collect(max_messages=100, timeout_seconds=0.1, wake=threading.Event())
    assert len(taken) == 40
    intake.close(join_seconds=3)


CHECKOUT = Path(__file__).resolve().parents[3]
ENVIRONMENT = """
environment: local
lake: {{root: "{lake}"}}
landing: {{root: "s3://{bucket}"}}
messaging:
  endpoint: "{endpoint}"
  access_key: env:DELTAWORKS_AWS_ACCESS_KEY
  secret_key: env:DELTAWORKS_AWS_SECRET_KEY
"""
RELAY = """
relay: landing
queue_url: "{queue_url}"
buckets: [{bucket}]
append_seconds: 0.2
lease_ttl_seconds: 3
max_run_seconds: {max_run_seconds}
"""

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(landing: Any, tmp_path: Path) -> Iterator[Launch]:
    """Starts relay processes of a project declared for this test; ends the remaining ones."""
    started: list[subprocess.Popen[str]] = []

    def start(relay: str = "landing", *, max_run_seconds: int = 60, **changes: Any) -> subprocess.Popen[str]:
        facts = {**vars(landing), "lake": landing.lake.root, "max_run_seconds": max_run_seconds, **changes}
        write_project(tmp_path, environment=ENVIRONMENT.format(**facts), relays=[RELAY.format(**facts)])
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / "include"),
            "DELTAWORKS_PROJECT": str(tmp_path),
            "DELTAWORKS_ENVIRONMENT": "local",
            "DELTAWORKS_RUN": "landing__relay/run/relay/1",
        }
        command = [sys.executable, "-m", "deltaworks.sources.objects.relay", "--relay", relay]
        process = subprocess.Popen(
            [*command, "--early-failure-wait-seconds", "0"],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns exit code and last line of output."""
    out, err = process.communicate(timeout=40)
    lines = out.strip().splitlines()
    assert lines, err
    return process.returncode, lines[-1]


def test_a_relay_process_runs_until_its_run_limit(landing: Any, launch: Launch) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(20)))
    code, last = ended(launch(max_run_seconds=10))
    assert code == 0
    assert json.loads(last.removeprefix("DELTAWORKS_RELAY "))["events"] == 20
    assert len(keys(landing)) == 20
    assert drain(landing)


def test_sigterm_ends_a_relay_process_cleanly_and_releases_its_lease(landing: Any, launch: Launch) -> None:
    landing.send(landing.notification("games/1"))
    process = launch()
    eventually(lambda: drain(landing) and keys(landing) == ["games/1"], "it works")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    lease = Lease(open_objects(landing.lake), relay_control("landing", "lease.json"), ttl_seconds=60, name="landing")
    assert lease.acquire(wait_seconds=0) == 2
    lease.release()


def test_kill_9_at_any_time_neither_loses_nor_duplicates_events(landing: Any, launch: Launch) -> None:
    """The rounds are killed once the log shows progress, so somewhere between receipt, append and delete."""
    landing.returns_after(1)
    names = [f"games/{number}" for number in range(300)]
    landing.send(*(landing.notification(name) for name in names))
    for round_number in range(2):
        process = launch()
        before = len(keys(landing))
        eventually(lambda before=before: len(keys(landing)) > before, f"progress in round {round_number}")
        process.kill()
        process.communicate()
        landing.send(*(landing.notification(name) for name in names[:50]))
    launch()
    eventually(lambda: drain(landing) and len(keys(landing)) >= 300, "everything is in the log")
    assert sorted(keys(landing)) == sorted(names)


def test_a_wrong_name_is_a_config_error_without_retry(launch: Launch) -> None:
    code, last = ended(launch("landign"))
    error = json.loads(last.removeprefix("DELTAWORKS_ERROR "))
    assert (code, error["condition"], error["retryable"]) == (10, "RELAY_UNKNOWN", False)
    assert "landing" in error["hint"]


def test_a_missing_queue_is_a_config_error_without_retry(landing: Any, launch: Launch) -> None:
    code, last = ended(launch(queue_url=landing.queue_url + "-missing"))
    assert (code, json.loads(last.removeprefix("DELTAWORKS_ERROR "))["condition"]) == (10, "QUEUE_REFUSED")
