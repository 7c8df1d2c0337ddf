"""The process of a pipeline's feeds: start, alerts, stop, independence of its feeds, and the documented examples."""

from __future__ import annotations

import json
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason
from deltaworks.feeds.process import DEAD_LETTERS_ALERT, STALE_ALERT, Feed, FeedAlerts, FeedsProcess
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.testing import RELAY, environment_spec, present, write_project
from tests.unit.alerts.aws_harness import Aws
from tests.unit.feeds.feed_harness import DAY, FeedHarness, Receiver, declared
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
    assert present(read_heartbeat(harness.objects, paths.heartbeat(running.folder))).state == "ended"


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


DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str, kind: str, *, language: str = "yaml") -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"<!-- example: {kind}[^>]*-->\n```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The pipeline `orders` of docs/contributing/extending.md, with its gold table and the feed of
    docs/how-to/feed-other-systems.md."""
    (pipeline,) = examples("contributing/extending.md", "pipeline")
    (gold,) = examples("contributing/extending.md", "gold")
    (sql,) = examples("contributing/extending.md", "gold", language="sql")
    (feed,) = examples("how-to/feed-other-systems.md", "feed")
    relay, files = RELAY | {"buckets": ["deltaworks-landing"]}, {"pipelines/orders/gold/turnover.sql": sql}
    return write_project(tmp_path, pipeline + gold + feed, relays=[relay], files=files)


def test_the_feed_of_the_page_sends_the_message_of_the_page(project: Path) -> None:
    assert check_project("local", root=project).errors == []
    catalog = load_catalog("local", root=project)
    spec = catalog.pipeline("orders")
    rows = pa.table(
        {
            "event_date": pa.array([DAY], pa.date32()),
            "country": ["NL"],
            "orders": pa.array([2], pa.int64()),
            "turnover": pa.array([Decimal("19.00")], pa.decimal128(22, 2)),
        }
    )
    write_deltalake(f"{project}/lake/{paths.table('orders', 'turnover')}", rows, partition_by=["event_date"])
    receiver = Receiver()
    Feed(catalog, spec, spec.feeds[0], open_objects(catalog.environment.lake), receiver).run_once()
    (sent,) = receiver.messages
    (shown,) = (json.loads(text) for text in examples("how-to/feed-other-systems.md", "message", language="json"))
    assert list(sent) == list(shown)
    changing = {"id", "number", "at"}
    assert {name: value for name, value in sent.items() if name not in changing} == {
        name: value for name, value in shown.items() if name not in changing
    }
    assert [len(sent["id"]), type(sent["number"]), len(sent["at"])] == [len(shown["id"]), int, len(shown["at"])]


def test_the_remediation_of_its_page_can_be_declared(tmp_path: Path) -> None:
    (declared,) = examples("how-to/remediate.md", "remediation")
    (remediation,) = environment_spec(tmp_path, **yaml.safe_load(declared)).remediations
    assert (remediation.name, remediation.dry_run) == ("shift_cdn", True)
