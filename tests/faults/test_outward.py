"""Processes that send rows to other systems or act automatically, killed in the middle of a request."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.channels import MessageContext
from deltaworks.alerts.channels.senders import publish, sns_message
from deltaworks.control.clock import utc_now
from deltaworks.testing import write_files
from sandbox.servers.moto_corrections import correct_moto
from tests.http_server import HttpAnswer, HttpRequest, http_server
from tests.moto_server import running_moto
from tests.unit.alerts.aws_harness import Aws
from tests.unit.feeds.feed_harness import FeedHarness, applied, declared
from tests.unit.remediation.remediation_harness import RemediationHarness
from tests.unit.remediation.traffic_server import running_director
from tests.unit.specs.conftest import PIPELINE, RELAY
from tests.unit.specs.test_environment_checks import RULE, SQL
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
ROWS = 2_000
#: Random secrets: a process rejects published ones.
ACCESS_KEY, SECRET_KEY = secrets.token_hex(10), secrets.token_urlsafe(33)
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts a process of the project in `tmp_path` as Airflow does; ends the remaining ones."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--early-failure-wait-seconds", "0"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "include"),
                "DELTAWORKS_PROJECT": str(tmp_path),
                "DELTAWORKS_ENVIRONMENT": "tests",
                "TEST_ACCESS_KEY": ACCESS_KEY,
                "TEST_SECRET_KEY": SECRET_KEY,
            },
            text=True,
            stdout=(tmp_path / f"output{len(started)}").open("w"),
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def write_environment(folder: Path, **more: Any) -> None:
    storage = {"root": f"file://{folder}/lake"}
    content = {"environment": "tests", "lake": storage, "landing": storage, "messaging": {}, **more}
    write_files(folder, {"include/environments/tests.yaml": content})


@dataclass
class Receiver:
    """An HTTP endpoint that receives changes and delays its replies after the first few requests."""

    left: int
    changes: list[dict[str, Any]] = field(default_factory=list)
    holds: threading.Event = field(default_factory=threading.Event)

    def __call__(self, request: HttpRequest) -> HttpAnswer:
        self.changes += request.json()["changes"]
        self.left -= 1
        if self.left == 0:
            self.holds.set()
            # Longer than the process's lifetime.
            threading.Event().wait(20)
        return 200, {}


def test_feeds_that_are_killed_in_a_call_deliver_every_row(tmp_path: Path, launch: Launch) -> None:
    receiver = Receiver(8)
    with http_server(receiver) as url:
        to = {"kind": "webhook", "url": url, "rows_per_call": 100, "timeout_seconds": 30}
        stage = FeedHarness(tmp_path, declared({"to": to, "every_seconds": 1}))
        stage.rebuild(0, {f"c{number:05d}": number for number in range(ROWS)})
        write_environment(tmp_path)
        content = stage.spec.model_dump(mode="json", exclude_unset=True, by_alias=True)
        write_files(tmp_path / "include" / "pipelines" / "shop", {"pipeline.yaml": content, "t.sql": "SELECT 1"})
        relay = {"relay": "landing", "buckets": ["landing"], "listing": {}}
        write_files(tmp_path / "include" / "relays", {"landing.yaml": relay})

        first = launch("deltaworks.feeds", "--feeds", "shop")
        assert receiver.holds.wait(120)
        first.send_signal(signal.SIGKILL)
        first.wait()
        launch("deltaworks.feeds", "--feeds", "shop")
        # Its predecessor's lease has to expire first.
        eventually(lambda: stage.record.number == 1, "the successor delivers the rest", seconds=180)
        assert applied(receiver.changes, ("event_date", "country")) == stage.rows()
        by_id = {change["id"]: change["key"]["country"] for change in receiver.changes}
        assert len(by_id) == ROWS
        assert 0 < len(receiver.changes) - ROWS <= 500, "one part is sent again, and no more"


def test_a_remediation_that_is_killed_in_its_call_moves_weight_once(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("TEST_SECRET_KEY", SECRET_KEY)
    correct_moto()
    with running_moto() as address, running_director(a=0.5, b=0.5) as director:
        aws = Aws(address)
        queue, topic = aws.queue(), aws.topic()
        aws.client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "5"})
        aws.subscribe(topic, queue)
        action = {"kind": "webhook", "url": director.url, "timeout_seconds": 30}
        stage = RemediationHarness(tmp_path, director, queue_url=queue, action=action)
        messaging = {"endpoint": address, "access_key": "env:TEST_ACCESS_KEY", "secret_key": "env:TEST_SECRET_KEY"}
        spec = stage.spec.model_dump(mode="json", exclude_unset=True)
        write_environment(tmp_path, messaging=messaging, remediations=[spec])
        rule = PIPELINE.replace("pipeline: shop", "pipeline: video_qos") + RULE.replace("orders_slow", "cdn_slow")
        write_files(tmp_path / "include" / "pipelines" / "video_qos", {"pipeline.yaml": rule, "slow.sql": SQL})
        write_files(tmp_path / "include" / "relays", {"landing.yaml": RELAY})
        stage.now = utc_now()
        notification = stage.fires("a")
        director.lost_replies = 1
        director.reply_seconds = 20.0

        first = launch("deltaworks.remediation", "--remediation", "shift_cdn")
        publish(aws.client("sns"), sns_message(topic, notification, MessageContext()))
        eventually(lambda: len(director.moves) == 1, "the director is called")
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert stage.record(notification).state == "planned"
        launch("deltaworks.remediation", "--remediation", "shift_cdn")
        eventually(
            lambda: stage.record(notification).state == "called", "the successor asks for the weights", seconds=180
        )
        assert (len(director.moves), director.weights) == (1, {"a": 0.3, "b": 0.7})
