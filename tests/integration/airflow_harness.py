"""A small stream under real Airflow processes, a continuous sender, and accessors for tests."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import boto3
import psutil

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.control.parent_watchdog import parent_of
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import load_settings
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import present, table_rows, write_files
from sandbox.demo.landing_sink import landing_sink
from sandbox.stack.home import StackHome
from sandbox.stack.stack import down, status, up
from tests.integration.airflow_people import People

BACK_SECONDS = 240.0
GONE_SECONDS = 20.0
PIPELINE = """
pipeline: clicks
description: What the test sends.
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: clicks/}
event:
  name: {constant: click}
  time: {path: at, unit: epoch_seconds}
  id: number
tables:
  - {name: clicks, catch_all: true, columns: [{name: number, path: number, type: long, required: true}]}
stream: {trigger_seconds: 1, lease_ttl_seconds: 6}
"""

# Airflow cannot backfill a DAG without a schedule, so this one has a very rare one.
GOLD = """
gold:
  lag: 7d
  deadline_minutes: 0.05
  tables: [{name: per_day, sql: per_day.sql, reads: [clicks], partition_by: event_date}]
"""
PER_DAY = "SELECT event_date, count(*) AS clicks FROM clicks GROUP BY event_date"
TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"
ALERTS = f"""
alerts:
  channels: [{{kind: sns, name: people, topic: "{TOPIC}"}}]
  deadman_seconds: 90
"""


def _declare(project: Path, more: str) -> None:
    (project / "include" / "pipelines" / "clicks" / "pipeline.yaml").write_text(PIPELINE + more)


def linked_project(folder: Path) -> Path:
    """Creates a project on this checkout's code with its relays and embedded environment, without pipelines. Alerts go
    to a topic.
    """
    include = folder / "include"
    (include / "environments").mkdir(parents=True)
    environment = (PROJECT_ROOT / "include" / "environments" / "local.yaml").read_text()
    (include / "environments" / "local.yaml").write_text(environment.partition("overrides:")[0] + ALERTS)
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    for name in (
        "include/deltaworks",
        "include/sandbox",
        "include/generator",
        "include/spark",
        "include/jars",
        "spark_jobs",
        "plugins",
        "dags",
    ):
        (folder / name).symlink_to(PROJECT_ROOT / name)
    return folder


def clicks_project(folder: Path, *, more: str = "") -> Path:
    """Creates a project with one small pipeline."""
    project = linked_project(folder)
    write_files(project, {"include/pipelines/clicks/per_day.sql": PER_DAY})
    _declare(project, more)
    return project


@dataclass
class Sender:
    """Lands an object of events every second, numbered from `sent`, until it is closed."""

    catalog: Catalog
    sent: int = 0

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        put = landing_sink(self.catalog.environment.landing)
        while not self._end.wait(1.0):
            first = self.sent
            lines = (json.dumps({"number": first + i, "at": 1_700_000_000 + first + i}) for i in range(10))
            put(f"clicks/2023/11/14/22/{first:08d}.json", "\n".join(lines).encode())
            self.sent += 10

    @property
    def closed(self) -> bool:
        return self._end.is_set()

    def close(self) -> int:
        """Stops; returns the number of landed events."""
        self._end.set()
        self._thread.join(timeout=30)
        return self.sent


@dataclass
class AirflowHarness:
    """The running stack with its sender, catalog and notifications."""

    home: StackHome
    catalog: Catalog
    sender: Sender
    notifications: list[tuple[str, str, str]] = field(default_factory=list)

    @cached_property
    def queue(self) -> str:
        """Returns a queue on the stack's server that is subscribed to the alerts topic."""
        topic, queue = self._aws("sns").create_topic(Name="alerts")["TopicArn"], self._aws("sqs")
        url: str = queue.create_queue(QueueName="people")["QueueUrl"]
        arn = queue.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        self._aws("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        return url

    def _aws(self, service: str) -> Any:
        session: Any = boto3.session.Session()
        return session.client(service, **self.catalog.environment.messaging.boto3_options())

    def told(self) -> list[tuple[str, str, str]]:
        """Returns cause, subject and kind of every notification in the queue, oldest first."""
        sqs = self._aws("sqs")
        while messages := sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                notification = json.loads(json.loads(message["Body"])["Message"])
                self.notifications.append((notification["cause"], notification["subject"], notification["kind"]))
                sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return self.notifications

    def declare(self, more: str) -> None:
        """Replaces the additional keys of the pipeline's declaration. A running stream continues with the old one."""
        _declare(self.home.project, more)

    @contextmanager
    def people(self) -> Iterator[People]:
        """Returns a client for Airflow's API with actions of people."""
        with people_of(self.home) as people:
            yield people

    def health_beat(self) -> bytes | None:
        """Returns the last heartbeat of the health check."""
        found = open_objects(self.catalog.environment.lake).get(paths.alerts("health.json"))
        return found.data if found else None

    def beat(self) -> Heartbeat | None:
        objects = open_objects(self.catalog.environment.lake)
        return read_heartbeat(objects, paths.pipeline_control("clicks", "heartbeat.json"))

    def rows(self) -> list[int]:
        """Returns the numbers of all events in the table."""
        return [row["number"] for row in table_rows(Lake(self.catalog.environment.lake), "clicks", "clicks", "number")]

    def await_progress(self, after: int) -> Heartbeat:
        """Waits until a live stream has landed more rows than `after`."""

        def moving() -> bool:
            beat = self.beat()
            return beat is not None and psutil.pid_exists(beat.pid) and len(self.rows()) > after

        wait(moving, "no stream is landing rows", BACK_SECONDS)
        return present(self.beat())

    def send(self) -> None:
        """Restarts a sender that has ended."""
        if self.sender.closed:
            self.sender = Sender(self.catalog, sent=self.sender.sent)

    def settle(self) -> tuple[int, int, int]:
        """Stops the sender and waits for its last event; returns events sent, lost and doubled."""
        sent = self.sender.close()
        wait(lambda: len(self.rows()) >= sent, f"not all of {sent} events arrived", BACK_SECONDS)
        owed, seen = Counter(range(sent)), Counter(self.rows())
        return sent, (owed - seen).total(), (seen - owed).total()

    def turns(self) -> list[str]:
        """Returns the runs that committed to the table, newest first; a run occurs again after another one's commit."""
        lake, key = Lake(self.catalog.environment.lake), paths.table("clicks", "clicks")
        table = present(lake.open(key))
        runs = [str(commit.metadata.get("run")) for commit in commit_history(lake, key, newest=table.version())]
        return [run for run, _ in groupby(runs)]


def wait(condition: Callable[[], bool], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.5)


@contextmanager
def running_stack(project: Path, *, variables: Mapping[str, str] | None = None) -> Iterator[tuple[StackHome, Catalog]]:
    """Runs a separate stack with a project inside the block.

    Args:
        variables: environment of its processes, overriding the stack's defaults.
    """
    before = dict(os.environ)
    os.environ["DELTAWORKS_PROJECT"] = str(project)
    home = StackHome.at(project / "home", project=project, dags_folder=project / "dags")
    try:
        up(home=home, variables=variables)
        load_settings(home.env_file)
        yield home, load_catalog("local", root=project)
    finally:
        down(home=home, grace_seconds=30)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def running_harness(folder: Path, *, more: str = "") -> Iterator[AirflowHarness]:
    """Runs a separate stack in the new folder with its stream and sender inside the block.

    Args:
        more: additional keys of the pipeline's declaration.
    """
    with running_stack(clicks_project(folder, more=more)) as (home, catalog):
        harness = AirflowHarness(home, catalog, Sender(catalog))
        try:
            yield harness
        finally:
            harness.sender.close()


@contextmanager
def people_of(home: StackHome) -> Iterator[People]:
    """Returns a client for Airflow's API with actions of people."""
    addresses = status(home=home).addresses
    assert addresses is not None
    with People(addresses.airflow_login()) as people:
        yield people


def ancestors(pid: int) -> dict[str, int]:
    """Returns the processes of a stream: driver, its JVM, the task runner, and the runner's supervisor."""
    names = ("driver", "jvm", "runner", "supervisor")
    found: dict[str, int] = {}
    current: int | None = pid
    for name in names:
        assert current is not None
        found[name] = current
        current = parent_of(current)
    return found


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
