"""The process of a pipeline's feeds: start, alerts, stop, and independence of its feeds."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason
from deltaworks.feeds.process import DEAD_LETTERS_ALERT, STALE_ALERT, FeedAlerts, FeedsProcess
from tests.unit.alerts.aws_harness import Aws
from tests.unit.feeds.feed_harness import FeedHarness, Receiver, declared
from tests.waiting import eventually


def delivered(harness: FeedHarness) -> int:
    record = harness.records.read()
    return record.number if record is not None else 0


def rows_delivered(harness: FeedHarness, folder: str) -> int:
    beat = read_heartbeat(harness.objects, paths.heartbeat(folder))
    return beat.rows if beat is not None else 0


class Running:
    """Runs a process in a thread until it is stopped by its flag."""

    def __init__(self, harness: FeedHarness, **more: Any) -> None:
        self.harness = harness
        self.process = FeedsProcess(harness.catalog, "shop", **more)
        self.thread = threading.Thread(target=self.process.run)
        self.folder = paths.feeds_control("shop")

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        StopFlag(self.harness.objects, paths.stop_request(self.folder)).set(by="me", reason="over")
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_changes_reach_a_real_queue_while_the_process_runs_and_it_ends_by_its_flag(tmp_path: Path, aws: Aws) -> None:
    queue = aws.queue()
    spec = declared({"to": {"kind": "sqs", "queue_url": queue}, "every_seconds": 1})
    harness = FeedHarness(tmp_path, spec, messaging=aws.messaging)
    harness.rebuild(0, {"de": 1, "at": 2})
    with Running(harness) as running:
        eventually(lambda: delivered(harness) == 1, "the first delivery")
        harness.rebuild(0, {"de": 2, "at": 2})
        eventually(lambda: delivered(harness) == 2, "the second delivery")
        eventually(lambda: rows_delivered(harness, running.folder) == 3, "the heartbeat counts the changes")
        (subject,) = [item for item in subjects(harness.catalog) if item.kind == "feeds"]
        assert subject.dag_id == "shop__feeds"
        assert check_subject(subject, harness.objects).verdict.state in ("healthy", "starting")
    sqs, taken = aws.client("sqs"), []
    while batch := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        for message in batch:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            taken.append(json.loads(message["Body"]))
    assert sorted((item["number"], item["key"]["country"], item["row"]["orders"]) for item in taken) == [
        (1, "at", 2),
        (1, "de", 1),
        (2, "de", 2),
    ]
    beat = read_heartbeat(harness.objects, paths.heartbeat(running.folder))
    assert beat is not None
    assert beat.state == "ended"


def test_a_failing_feed_raises_its_alert_and_does_not_end_others(tmp_path: Path) -> None:
    good, bad = Receiver(), ConfigError("FEED_SINK_REFUSED", "nobody is there", hint="mend it")
    feeds = [
        declared().feeds[0].model_dump(mode="json", exclude_unset=True) | {"name": name, "every_seconds": 1}
        for name in ("broken", "sound")
    ]
    feeds[0]["to"] = {"kind": "webhook", "url": "http://127.0.0.1:1/"}
    harness = FeedHarness(tmp_path, declared(feeds=feeds))
    harness.rebuild(0, {"de": 1})

    def opened(spec: Any, _messaging: Any) -> Receiver:
        if spec.kind == "webhook":
            raise bad
        return good

    with Running(harness, open_sink=opened):
        eventually(lambda: open_subjects(harness.objects, STALE_ALERT) == {"shop.broken"}, "its alert")
        eventually(lambda: len(good.messages) == 1, "the other feed delivers")


def test_dead_letters_raise_an_alert_once_and_not_those_of_an_earlier_run(tmp_path: Path) -> None:
    harness = FeedHarness(tmp_path)
    harness.rebuild(0, {"de": 1})
    record = harness.feed(Receiver(faults=lambda message: (DeadReason.REFUSED, "no"))).run_once()
    later = FeedAlerts(harness.objects, "shop.offers", stale_minutes=1)
    later.load(record)
    later.on_success(record)
    assert open_subjects(harness.objects, DEAD_LETTERS_ALERT) == set()
    first = FeedAlerts(harness.objects, "shop.offers", stale_minutes=1)
    first.load(None)
    first.on_success(record)
    assert open_subjects(harness.objects, DEAD_LETTERS_ALERT) == {"shop.offers"}


def test_only_changes_pending_longer_than_declared_raise_an_alert(tmp_path: Path) -> None:
    harness = FeedHarness(tmp_path)
    alerts = FeedAlerts(harness.objects, "shop.offers", stale_minutes=10)
    alerts.on_delay("2999-01-01T00:00:00+00:00", "busy")
    assert open_subjects(harness.objects, STALE_ALERT) == set()
    alerts.on_delay("2026-01-01T00:00:00+00:00", "busy")
    assert open_subjects(harness.objects, STALE_ALERT) == {"shop.offers"}
    harness.rebuild(0, {"de": 1})
    alerts.on_success(harness.feed(Receiver()).run_once())
    assert open_subjects(harness.objects, STALE_ALERT) == set()


def test_a_pipeline_without_feeds_raises_with_the_place_to_declare_them(tmp_path: Path) -> None:
    harness = FeedHarness(tmp_path, declared(feeds=[]))
    with pytest.raises(ConfigError, match="PIPELINE_WITHOUT_FEEDS"):
        FeedsProcess(harness.catalog, "shop")
