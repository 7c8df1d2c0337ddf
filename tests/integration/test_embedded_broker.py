"""The embedded stack of a project that reads Kafka: its broker starts with it, is restarted, keeps topics, and
stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_project
from sandbox.stack.environment import read_env
from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes
from sandbox.stack.report import ProgramStatus
from sandbox.stack.stack import down, status, up

HEAL_SECONDS = 60.0
PIPELINE = """
pipeline: clicks
description: What the test sends.
owner: tests
source: {kind: kafka, bootstrap_servers: "env:DELTAWORKS_KAFKA_BOOTSTRAP", topics: [clicks]}
event: {name: {constant: click}, time: {path: at, unit: epoch_seconds}}
tables: [{name: clicks, catch_all: true}]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackHome]:
    """A project with one Kafka pipeline and no DAG."""
    project = tmp_path_factory.mktemp("project")
    environment = (PROJECT_ROOT / "include" / "environments" / "local.yaml").read_text()
    write_project(project, PIPELINE, environment=environment.partition("overrides:")[0], relays=[])
    for name in ("deltaworks", "sandbox", "generator", "spark", "jars"):
        (project / "include" / name).symlink_to(PROJECT_ROOT / "include" / name)
    (project / "plugins").symlink_to(PROJECT_ROOT / "plugins")
    (project / "dags").mkdir()
    found = StackHome.at(project / "home", project=project, dags_folder=project / "dags")
    before = dict(os.environ)
    os.environ["DELTAWORKS_PROJECT"] = str(project)
    yield found
    down(home=found, grace_seconds=0)
    os.environ.clear()
    os.environ.update(before)


def test_the_broker_comes_up_with_the_stack_and_has_the_declared_topics(home: StackHome) -> None:
    lines: list[str] = []
    up(home=home, progress=lines.append)

    assert status(home=home).healthy
    assert broker(home).healthy
    assert "Created topics: clicks" in lines
    assert set(AdminClient(options(home)).list_topics(timeout=10).topics["clicks"].partitions) == {0, 1}


def test_a_broker_that_hangs_is_not_healthy(home: StackHome) -> None:
    pid = broker(home).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not broker(home).healthy
    finally:
        os.kill(pid, signal.SIGCONT)

    _wait(lambda: broker(home).healthy, "the broker continues")


def test_a_killed_broker_comes_back_with_what_it_was_sent(home: StackHome) -> None:
    send(home, 5)
    killed = broker(home).pid
    assert killed is not None

    os.kill(killed, signal.SIGKILL)

    _wait(lambda: broker(home).pid not in (None, killed) and broker(home).healthy, "the broker comes back")
    assert sent(home) == 5


def test_down_ends_it_and_up_goes_on_with_its_topics_at_the_same_address(home: StackHome) -> None:
    address = options(home)
    before = sent(home)

    report = down(home=home)

    assert (report.was_running, report.killed) == (True, ())
    assert stack_processes(home) == ()
    assert broker(home).state == "STOPPED"
    lines: list[str] = []
    up(home=home, progress=lines.append)
    assert options(home) == address
    assert sent(home) == before == 5
    assert not [line for line in lines if line.startswith("Created topics")]


def broker(home: StackHome) -> ProgramStatus:
    (found,) = (program for program in status(home=home).programs if program.name == "kafka")
    return found


def options(home: StackHome) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": read_env(home)["DELTAWORKS_KAFKA_BOOTSTRAP"], "log_level": 0}


def send(home: StackHome, count: int) -> None:
    producer = Producer(options(home))
    for number in range(count):
        producer.produce("clicks", b'{"at": 1700000000}', partition=number % 2)
    assert producer.flush(30) == 0


def sent(home: StackHome) -> int:
    admin = AdminClient(options(home))
    asked = {TopicPartition("clicks", partition): OffsetSpec.latest() for partition in (0, 1)}
    return sum(each.result(30).offset for each in admin.list_offsets(asked).values())


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HEAL_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.5)
