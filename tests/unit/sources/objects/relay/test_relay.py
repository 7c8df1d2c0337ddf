"""The relay with a real SQS protocol: each file event once, no message deleted before it is in the log, one relay."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from deltaworks.control.locks.lease import Lease, LeaseRecord
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.errors import ConcurrencyError, ConfigError, FencedError
from deltaworks.sources.objects.file_event_log import message_quarantine_key
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, PendingAppend, last_log_epoch
from deltaworks.sources.objects.relay.queue import BatchOutcome, Message, NotificationQueue
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.sources.objects.relay.relay_harness import Killed, drain, keys, relay_of, running
from tests.waiting import eventually


def test_landed_objects_become_file_events_and_their_messages_are_deleted(landing: Any) -> None:
    names = [f"games/Happy Face {number}+1=ä.json" for number in range(8)]
    landing.put(*names)
    with running(relay_of(landing)) as relay:
        eventually(lambda: drain(landing) and relay.counts.deleted == 8, "the queue is empty")
    assert sorted(keys(landing)) == sorted(names)
    assert relay.counts.events == 8
    assert relay.counts.delete_failed == relay.counts.duplicates == 0


def test_shuffled_redeliveries_give_each_file_event_once(landing: Any) -> None:
    random.seed(11)
    bodies = [landing.notification(f"games/{number}") for number in range(60)] * 3
    random.shuffle(bodies)
    landing.send(*bodies)
    with running(relay_of(landing, max_events_per_append=25)) as relay:
        eventually(lambda: drain(landing) and relay.counts.deleted >= 180, "the queue is empty")
    assert sorted(keys(landing)) == sorted(f"games/{number}" for number in range(60))
    assert relay.counts.duplicates >= 120


def test_unusable_messages_are_quarantined_and_the_rest_is_counted(landing: Any) -> None:
    landing.send(
        "not json",
        landing.notification("games/1").replace(landing.bucket, "foreign"),
        '{"Service": "Amazon S3", "Event": "s3:TestEvent"}',
        landing.notification("games/2").replace("ObjectCreated:Put", "ObjectRemoved:Delete"),
        landing.notification("games/3"),
    )
    with running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.deleted == 5, "all five messages are gone")
    rows = present(Lake(landing.lake).rows(message_quarantine_key("landing")))
    assert sorted(rows.column("reason").to_pylist()) == ["foreign_bucket", "not_json"]
    assert "not json" in rows.column("body").to_pylist()
    assert relay.counts.ignored == {"test_event": 1, "not_created": 1}
    assert keys(landing) == ["games/3"]


def test_a_kill_between_append_and_delete_duplicates_nothing(landing: Any) -> None:
    class DiesBeforeDeleting(NotificationQueue):
        def delete(self, messages: Sequence[Message]) -> BatchOutcome:
            raise Killed

        def return_messages(self, messages: Sequence[Message]) -> BatchOutcome:
            raise Killed

    landing.returns_after(1)
    landing.send(*(landing.notification(f"games/{number}") for number in range(12)))
    dying = DiesBeforeDeleting(landing.messaging, landing.queue_url, wait_seconds=1)
    with pytest.raises(Killed), running(relay_of(landing, queue=dying)) as relay:
        eventually(lambda: relay.counts.events > 0, "an append")
    assert landing.waiting() != (0, 0)
    with running(relay_of(landing)) as relay:
        eventually(lambda: drain(landing) and relay.counts.deleted >= 12, "the messages came back and are gone")
    assert sorted(keys(landing)) == sorted(f"games/{number}" for number in range(12))
    assert relay.counts.duplicates > 0


def test_a_kill_before_the_append_loses_nothing(landing: Any) -> None:
    attempts: list[PendingAppend] = []

    class DiesBeforeAppending(FileEventLogWriter):
        def commit(self, pending: PendingAppend) -> None:
            attempts.append(pending)
            raise Killed

    def open_dying(lake: Lake, relay: str, epoch: int) -> FileEventLogWriter:
        return DiesBeforeAppending(lake, relay, epoch=epoch)

    landing.returns_after(1)
    landing.send(*(landing.notification(f"games/{number}") for number in range(12)))
    with pytest.raises(Killed), running(relay_of(landing, open_log=open_dying)):
        eventually(lambda: bool(attempts), "an append is about to be made")
    assert keys(landing) == []
    with running(relay_of(landing)) as relay:
        eventually(lambda: drain(landing) and relay.counts.deleted >= 12, "the messages came back and are gone")
    assert sorted(keys(landing)) == sorted(f"games/{number}" for number in range(12))


def test_a_message_with_unsafe_names_is_quarantined_and_the_others_land(landing: Any) -> None:
    bodies = [landing.notification("games/1", etag="a\r\nb"), landing.notification("../games/2")]
    landing.send(*bodies, landing.notification("games/3"))
    with running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.deleted == 3, "all three messages are gone")
    rows = present(Lake(landing.lake).rows(message_quarantine_key("landing")))
    assert sorted(zip(*(rows.column(name).to_pylist() for name in ("reason", "body")), strict=True)) == [
        ("unsafe_key", bodies[1]),
        ("unsafe_tag", bodies[0]),
    ]
    assert keys(landing) == ["games/3"]


def test_a_relay_takes_over_at_its_first_start_after_its_lease_vanished(landing: Any) -> None:
    FileEventLogWriter(Lake(landing.lake), "landing", epoch=5)
    landing.send(landing.notification("games/1"))

    with running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.deleted == 1, "the message is gone")

    stored = open_objects(landing.lake).get(relay_control("landing", "lease.json"))
    lease = LeaseRecord.decode_or_none(stored.data) if stored else None
    assert (lease and lease.epoch, last_log_epoch(Lake(landing.lake), "landing")) == (6, 6)
    assert keys(landing) == ["games/1"]


def test_a_second_relay_that_must_not_wait_reports_the_lease_holder(landing: Any) -> None:
    holder = Lease(open_objects(landing.lake), relay_control("landing", "lease.json"), ttl_seconds=30, name="landing")
    holder.acquire(wait_seconds=1)
    with pytest.raises(ConcurrencyError, match="LEASE_HELD"):
        relay_of(landing, lease_wait_seconds=0).run()
    holder.release()


def test_a_paused_relay_with_a_successor_appends_and_deletes_nothing(landing: Any) -> None:
    class Pausing(FileEventLogWriter):
        """Falls asleep with an append in hand; meanwhile a successor opens the log under a later epoch."""

        def commit(self, pending: PendingAppend) -> None:
            FileEventLogWriter(Lake(landing.lake), "landing", epoch=99)
            super().commit(pending)

    def open_pausing(lake: Lake, relay: str, epoch: int) -> FileEventLogWriter:
        return Pausing(lake, relay, epoch=epoch)

    landing.send(landing.notification("games/1"))
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        relay_of(landing, open_log=open_pausing).run()
    assert keys(landing) == []
    eventually(lambda: landing.waiting()[0] == 1, "the message is back for the successor")


def test_an_immediate_stop_returns_held_messages(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(5)))
    relay = relay_of(landing, append_seconds=60)
    with running(relay):
        eventually(lambda: landing.waiting() == (0, 5), "all are in hand")
        relay.stop(immediately=True)
    assert keys(landing) == []
    eventually(lambda: landing.waiting() == (5, 0), "all are back, even those whose receive was still on its way")


def test_a_receive_that_outlives_an_immediate_stop_returns_its_messages(landing: Any) -> None:
    received, answered = threading.Event(), threading.Event()

    class SlowAnswer(NotificationQueue):
        """Its messages reach the relay only after the relay has ended."""

        def receive(self) -> list[Message]:
            messages = super().receive()
            if messages:
                received.set()
                answered.wait(60)
            return messages

    landing.send(*(landing.notification(f"games/{number}") for number in range(5)))
    with running(relay_of(landing, queue=SlowAnswer(landing.messaging, landing.queue_url, wait_seconds=1))) as relay:
        assert received.wait(60)
        relay.stop(immediately=True)
    assert landing.waiting()[0] == 0
    answered.set()
    eventually(lambda: landing.waiting() == (5, 0), "the messages are back")


def test_a_graceful_stop_appends_held_messages(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(5)))
    with running(relay_of(landing, append_seconds=60)):
        eventually(lambda: landing.waiting() == (0, 5), "all are in hand")
    assert len(keys(landing)) == 5
    assert drain(landing)


def test_a_missing_queue_is_a_config_error(landing: Any) -> None:
    missing = NotificationQueue(landing.messaging, landing.queue_url + "-missing", wait_seconds=1)
    with pytest.raises(ConfigError, match="QUEUE_REFUSED"):
        relay_of(landing, queue=missing).run()
