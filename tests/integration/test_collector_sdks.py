"""A running collector: SDKs of Segment and RudderStack while it is killed, a changed declaration, and a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from confluent_kafka import Consumer

from collector.packing import SpooledEvent
from collector.sinks import DeadLetter, SinkBusyError
from collector.sinks.kafka import KafkaSink
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_files
from sandbox.servers.kafka_broker import RunningBroker, create_topics, running_broker
from sandbox.servers.object_store import free_port
from tests.collector_process import KEY, CollectorProcess, declaration
from tests.faults.harness.collector_harness import CollectorHarness, collector_harness
from tests.http_server import http_server
from tests.processes import run_process

HERE = Path(__file__).parent / "sdks"
EVENTS = 2000
SDKS = ("segment", "rudder")


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with the installed SDKs; reinstalled when another version is pinned."""
    folder = Path(os.environ.get("DELTAWORKS_SDKS", PROJECT_ROOT / ".deltaworks" / "sdks"))
    pins = (HERE / "requirements.txt").read_text()
    stamp = folder / "requirements.txt"
    if not stamp.is_file() or stamp.read_text() != pins:
        command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
        done = run_process([*command, "--requirement", str(HERE / "requirements.txt")])
        if done.returncode != 0:
            pytest.skip(f"the SDKs cannot be installed here: {done.stderr[-300:]}")
        stamp.write_text(pins)
    return folder


def sending(sdk: str, url: str, packages: Path, *, events: int = EVENTS, retries: int = 10) -> subprocess.Popen[str]:
    words = [sys.executable, str(HERE / "send.py"), sdk, url, KEY, str(events), str(retries)]
    variables = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables)


@pytest.mark.parametrize("sdk", SDKS)
def test_an_sdk_drops_no_batch_if_the_collector_is_killed_while_it_sends(
    sdk: str, packages: Path, tmp_path: Path
) -> None:
    listen = {"host": "127.0.0.1", "port": free_port(), "metrics_port": 0}
    collector = CollectorProcess(tmp_path, declaration(listen=listen)).start()
    sender = sending(sdk, collector.url, packages)
    time.sleep(1.5)
    collector.kill()
    time.sleep(1)
    collector.start()
    output, _ = sender.communicate(timeout=300)
    collector.terminate()

    events = collector.spooled_events()
    assert json.loads(output) == {"abandoned": 0}
    assert {event["properties"]["n"] for event in events} == set(range(EVENTS))
    assert len({event["_collector"]["id"] for event in events}) == EVENTS, "what came twice has one id"
    assert {event["_collector"]["id_from"] for event in events} == {"client"}


@pytest.mark.parametrize(("status", "abandoned"), [(200, 0), (202, 20), (204, 20)])
def test_an_sdk_drops_a_batch_that_is_answered_with_another_success_than_200(
    status: int, abandoned: int, packages: Path
) -> None:
    with http_server(lambda _: (status, b"")) as url:
        output, _ = sending("rudder", url, packages, events=20, retries=1).communicate(timeout=120)

    assert json.loads(output)["abandoned"] == abandoned


def deltaworks(stage: CollectorHarness, *words: str) -> str:
    command = [sys.executable, "-m", "deltaworks.cli", *words]
    return subprocess.run(
        command, env=stage.environment(), cwd=stage.root, check=True, capture_output=True, text=True
    ).stdout


def status(stage: CollectorHarness, key: str) -> int:
    event = {"name": "order", "event_id": f"of {key}"}
    answer = httpx2.post(f"{stage.url}/v1/events", json=event, auth=(key, ""), timeout=30)
    return answer.status_code


def wait_for_start(stage: CollectorHarness) -> None:
    assert stage.process is not None
    assert stage.process.stdout is not None
    for line in stage.process.stdout:
        if line.startswith("COLLECTOR_LISTENING "):
            stage.url = f"http://127.0.0.1:{json.loads(line.partition(' ')[2])['port']}"
            return
    raise AssertionError(stage.log.read_text()[-2_000:])


def test_a_new_source_and_its_key_need_no_restart(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        assert stage.post() == ""
        assert stage.process is not None
        process = stage.process.pid
        declared = (tmp_path / "include/pipelines/shop/pipeline.yaml").read_text()
        clicks = declared.replace("pipeline: shop", "pipeline: clicks")
        write_files(tmp_path, {"include/pipelines/clicks/pipeline.yaml": clicks})

        file = tmp_path / "include" / "collectors" / "edge.yaml"
        printed = deltaworks(stage, "collector-key", "clicks")
        assert "clicks" not in file.read_text()
        written = deltaworks(stage, "collector-key", "clicks", "--write")
        key = written.splitlines()[0].removeprefix("Key: ")
        assert printed.splitlines()[0] != written.splitlines()[0]
        assert key not in file.read_text()
        wait_for_start(stage)

        assert status(stage, key) == 200
        assert status(stage, "unknown") == 401
        assert stage.process.pid == process
        assert stage.post() == ""
        stage.wait_until_delivered()
        stage.end()


def test_a_declaration_that_is_invalid_changes_nothing(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        file = tmp_path / "include" / "collectors" / "edge.yaml"
        valid = file.read_text()

        file.write_text(valid.replace("sources:", "sauces:"))
        for _ in range(30):
            assert stage.post() == ""
            httpx2.get(stage.metrics_url, timeout=30).raise_for_status()
        file.write_text(valid)

        assert stage.end() == 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka"), settings={"auto.create.topics.enable": "false"}) as running:
        yield running


def events(first: int, last: int) -> list[SpooledEvent]:
    return [SpooledEvent(seq, json.dumps({"seq": seq}).encode()) for seq in range(first, last + 1)]


def taken(broker: RunningBroker, topic: str) -> Counter[int]:
    """Returns how often each event is in the topic."""
    options = {"bootstrap.servers": broker.address.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    counts: Counter[int] = Counter()
    try:
        # The consumer group needs a moment to start; afterwards an empty poll means the end of the topic.
        while (record := consumer.poll(5 if counts else 30)) is not None:
            assert record.error() is None
            value = record.value()
            assert isinstance(value, bytes)
            counts[json.loads(value)["seq"]] += 1
    finally:
        consumer.close()
    return counts


def test_all_events_are_in_the_topic_once_and_the_oversized_one_is_a_dead_letter(broker: RunningBroker) -> None:
    create_topics(broker.address.bootstrap, ["events"])
    huge = SpooledEvent(501, b'"' + b"x" * 3_000_000 + b'"')
    sink = KafkaSink(broker.address.client_options(), "events")

    aside = sink.send([*events(1, 500), huge, *events(502, 1000)])

    assert [type(item) for item in aside] == [DeadLetter]
    assert aside[0].event is huge
    assert taken(broker, "events") == Counter(set(range(1, 1001)) - {501})


def test_events_not_accepted_during_a_broker_outage_are_resent_and_arrive_once(broker: RunningBroker) -> None:
    create_topics(broker.address.bootstrap, ["back"])
    sink = KafkaSink(broker.address.client_options(), "back")
    assert sink.send(events(1, 100)) == []
    broker.kill()

    with pytest.raises(SinkBusyError) as busy:
        sink.send(events(101, 200))
    assert [event.seq for event in busy.value.remaining] == list(range(101, 201))
    broker.start()
    assert sink.send(busy.value.remaining) == []

    assert taken(broker, "back") == Counter(range(1, 201))
