"""The process of a pipeline's feeds: started as relays are, told about, stopped, and never ended by one feed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import outbound_paths, paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.health.stop import StopFlag
from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason
from deltaworks.feeds.process import DEAD_LETTERS_ALERT, STALE_ALERT, FeedAlerts, FeedsProcess
from sandbox.servers.moto_corrections import correct_moto
from tests.moto_server import running_moto
from tests.unit.alerts.aws_stage import Aws
from tests.unit.feeds.feed_stage import FeedStage, Receiver, declared
from tests.waiting import eventually


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    correct_moto()
    with running_moto() as address:
        yield Aws(address)


def delivered(stage: FeedStage) -> int:
    record = stage.records.read()
    return record.number if record is not None else 0


def rows_told(stage: FeedStage, folder: str) -> int:
    beat = read_heartbeat(stage.objects, paths.heartbeat(folder))
    return beat.rows if beat is not None else 0


class Running:
    """A process in a thread of this one, until it is stopped by its flag."""

    def __init__(self, stage: FeedStage, **more: Any) -> None:
        self.stage = stage
        self.process = FeedsProcess(stage.catalog, "shop", **more)
        self.thread = threading.Thread(target=self.process.run)
        self.folder = outbound_paths.feeds_control("shop")

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        StopFlag(self.stage.objects, paths.stop_request(self.folder)).set(by="me", reason="over")
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_changes_reach_a_real_queue_while_the_process_runs_and_it_ends_by_its_flag(tmp_path: Path, aws: Aws) -> None:
    queue = aws.queue()
    spec = declared({"to": {"kind": "sqs", "queue_url": queue}, "every_seconds": 1})
    stage = FeedStage(tmp_path, spec, messaging=aws.messaging)
    stage.rebuild(0, {"de": 1, "at": 2})
    with Running(stage) as running:
        eventually(lambda: delivered(stage) == 1, "the first delivery")
        stage.rebuild(0, {"de": 2, "at": 2})
        eventually(lambda: delivered(stage) == 2, "the second delivery")
        eventually(lambda: rows_told(stage, running.folder) == 3, "the heartbeat counts the changes")
        (subject,) = [item for item in subjects(stage.catalog) if item.kind == "feeds"]
        assert subject.dag_id == "feeds__shop"
        assert check_subject(subject, stage.objects).verdict.state in ("healthy", "starting")
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
    beat = read_heartbeat(stage.objects, paths.heartbeat(running.folder))
    assert beat is not None
    assert beat.state == "ended"


def test_a_feed_that_cannot_deliver_raises_its_alert_and_ends_no_other(tmp_path: Path) -> None:
    good, bad = Receiver(), ConfigError("FEED_SINK_REFUSED", "nobody is there", hint="mend it")
    feeds = [
        declared().feeds[0].model_dump(mode="json", exclude_unset=True) | {"name": name, "every_seconds": 1}
        for name in ("broken", "sound")
    ]
    feeds[0]["to"] = {"kind": "webhook", "url": "http://127.0.0.1:1/"}
    stage = FeedStage(tmp_path, declared(feeds=feeds))
    stage.rebuild(0, {"de": 1})

    def opened(spec: Any, _messaging: Any) -> Receiver:
        if spec.kind == "webhook":
            raise bad
        return good

    with Running(stage, open_sink=opened):
        eventually(lambda: open_subjects(stage.objects, STALE_ALERT) == {"shop.broken"}, "its alert")
        eventually(lambda: len(good.messages) == 1, "the other feed delivers")


def test_dead_letters_are_told_once_they_come_and_not_of_a_run_before(tmp_path: Path) -> None:
    stage = FeedStage(tmp_path)
    stage.rebuild(0, {"de": 1})
    record = stage.feed(Receiver(faults=lambda message: (DeadReason.REFUSED, "no"))).run_once()
    later = FeedAlerts(stage.objects, "shop.offers", stale_minutes=1)
    later.load(record)
    later.on_success(record)
    assert open_subjects(stage.objects, DEAD_LETTERS_ALERT) == set()
    first = FeedAlerts(stage.objects, "shop.offers", stale_minutes=1)
    first.load(None)
    first.on_success(record)
    assert open_subjects(stage.objects, DEAD_LETTERS_ALERT) == {"shop.offers"}


def test_what_waits_for_less_than_is_declared_is_not_told_and_more_is(tmp_path: Path) -> None:
    stage = FeedStage(tmp_path)
    alerts = FeedAlerts(stage.objects, "shop.offers", stale_minutes=10)
    alerts.on_delay("2999-01-01T00:00:00+00:00", "busy")
    assert open_subjects(stage.objects, STALE_ALERT) == set()
    alerts.on_delay("2026-01-01T00:00:00+00:00", "busy")
    assert open_subjects(stage.objects, STALE_ALERT) == {"shop.offers"}
    stage.rebuild(0, {"de": 1})
    alerts.on_success(stage.feed(Receiver()).run_once())
    assert open_subjects(stage.objects, STALE_ALERT) == set()


def test_a_pipeline_without_feeds_says_where_to_declare_them(tmp_path: Path) -> None:
    stage = FeedStage(tmp_path, declared(feeds=[]))
    with pytest.raises(ConfigError, match="PIPELINE_WITHOUT_FEEDS"):
        FeedsProcess(stage.catalog, "shop")
