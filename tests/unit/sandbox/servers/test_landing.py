"""The landing side on a real server: announcements arrive in SNS's envelope, and lists are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandbox.servers.landing import (
    LANDING_BUCKET,
    MAX_RECEIVES,
    LandingQueues,
    is_wired,
    landing_client,
    list_requests,
    wire_landing,
)
from sandbox.servers.moto_server import LandingServer
from sandbox.stack.ports import HOST, choose_ports

KEYS = {"access_key": "AKIATEST", "secret_key": "secret"}


@dataclass(frozen=True)
class Landing:
    endpoint: str
    request_log: Path
    queues: LandingQueues

    def client(self, service: str) -> Any:
        return landing_client(service, endpoint=self.endpoint, **KEYS)

    def announcements(self) -> list[dict[str, Any]]:
        found = []
        sqs = self.client("sqs")
        while messages := sqs.receive_message(
            QueueUrl=self.queues.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=0
        ).get("Messages"):
            for message in messages:
                found.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=self.queues.queue_url, ReceiptHandle=message["ReceiptHandle"])
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Landing]:
    port = choose_ports({}, environ={})["moto"]
    request_log = tmp_path_factory.mktemp("landing") / "requests.log"
    running = LandingServer(port=port, request_log=request_log, **KEYS)
    yield Landing(f"http://{HOST}:{port}", request_log, running.start())
    running.stop()


@pytest.fixture
def landing(server: Landing) -> Landing:
    server.announcements()
    return server


def test_an_object_is_announced_on_the_queue_in_the_envelope_of_sns(landing: Landing) -> None:
    landing.client("s3").put_object(Bucket=LANDING_BUCKET, Key="games/a b.gz", Body=b"x")

    (envelope,) = landing.announcements()
    (record,) = json.loads(envelope["Message"])["Records"]

    assert envelope["Type"] == "Notification"
    assert record["s3"]["bucket"]["name"] == LANDING_BUCKET
    assert record["eventName"].startswith("ObjectCreated:")


def test_wiring_twice_announces_each_object_once(landing: Landing) -> None:
    wire_landing(endpoint=landing.endpoint, **KEYS)
    landing.announcements()

    landing.client("s3").put_object(Bucket=LANDING_BUCKET, Key="games/one", Body=b"x")

    assert len(landing.announcements()) == 1


def test_messages_nobody_can_handle_go_to_the_dead_letter_queue(landing: Landing) -> None:
    answer = landing.client("sqs").get_queue_attributes(
        QueueUrl=landing.queues.queue_url, AttributeNames=["RedrivePolicy"]
    )
    redrive = json.loads(answer["Attributes"]["RedrivePolicy"])

    assert redrive["deadLetterTargetArn"].endswith(landing.queues.dead_letter_url.rsplit("/", 1)[-1])
    assert int(redrive["maxReceiveCount"]) == MAX_RECEIVES


def test_the_server_counts_as_wired_and_a_closed_port_does_not(landing: Landing) -> None:
    assert is_wired(endpoint=landing.endpoint, **KEYS)
    assert not is_wired(endpoint=f"http://{HOST}:1", **KEYS)


def test_only_lists_of_the_landing_bucket_are_counted(landing: Landing) -> None:
    s3 = landing.client("s3")
    s3.put_object(Bucket=LANDING_BUCKET, Key="games/one", Body=b"x")
    s3.get_object(Bucket=LANDING_BUCKET, Key="games/one")
    s3.head_bucket(Bucket=LANDING_BUCKET)
    s3.get_bucket_notification_configuration(Bucket=LANDING_BUCKET)
    s3.get_bucket_location(Bucket=LANDING_BUCKET)
    s3.create_bucket(Bucket="other")
    s3.list_objects_v2(Bucket="other")
    before = datetime.now(UTC)
    assert list_requests(landing.request_log) == 0

    s3.list_objects_v2(Bucket=LANDING_BUCKET)
    s3.list_objects(Bucket=LANDING_BUCKET, Prefix="games/")
    s3.list_object_versions(Bucket=LANDING_BUCKET)

    assert list_requests(landing.request_log) == 3
    assert list_requests(landing.request_log, since=datetime.now(UTC) + timedelta(seconds=1)) == 0
    assert list_requests(landing.request_log, since=before - timedelta(milliseconds=1)) == 3


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET} 200", 1),
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET}/?prefix=games/ 200", 1),
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET}?list-type=2&prefix=policy 200", 1),
        (f"GET {LANDING_BUCKET}.s3.amazonaws.com /?list-type=2 200", 1),
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET}?notification 200", 0),
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET}/games/one 200", 0),
        (f"GET 127.0.0.1:1 /{LANDING_BUCKET}-other?list-type=2 200", 0),
        (f"HEAD 127.0.0.1:1 /{LANDING_BUCKET} 200", 0),
        ("POST 127.0.0.1:1 / 200", 0),
    ],
)
def test_a_list_is_recognised_by_its_request_line(tmp_path: Path, request_line: str, expected: int) -> None:
    log = tmp_path / "requests.log"
    log.write_text(f"2026-11-21T02:37:17.616 {request_line}\n")

    assert list_requests(log) == expected


def test_lists_in_rotated_logs_are_counted_too(tmp_path: Path) -> None:
    line = f"2026-11-21T02:37:17.616 GET 127.0.0.1:1 /{LANDING_BUCKET}?list-type=2 200\n"
    (tmp_path / "requests.log").write_text(line)
    (tmp_path / "requests.log.1").write_text(line * 2)

    assert list_requests(tmp_path / "requests.log") == 3
    assert list_requests(tmp_path / "absent.log") == 0
