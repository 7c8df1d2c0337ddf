"""The relay over time: outages, leases, its run limit."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.errors import FencedError
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, PendingAppend
from deltaworks.sources.objects.relay.queue import Message, NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.tables.lake import Lake
from tests.unit.sources.objects.relay.relay_harness import keys, relay_of, running
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration


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
    heartbeat = read_heartbeat(objects, relay_control("landing", "heartbeat.json"))
    assert heartbeat is not None
    assert (heartbeat.state, heartbeat.rows, heartbeat.batch_id) == ("ended", 1, 1)
    assert heartbeat.backlog_files in (0, 1)


def test_a_relay_ends_at_its_run_limit(landing: Any) -> None:
    started = time.monotonic()
    spec = landing.spec().model_copy(update={"max_run_seconds": 1})
    counts = Relay(spec, lake=landing.lake, queue=landing.queue()).run()
    assert counts.messages == 0
    assert time.monotonic() - started < 8
