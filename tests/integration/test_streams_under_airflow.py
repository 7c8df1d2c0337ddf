"""A stream under Airflow's own processes: whatever is killed, nothing goes on writing, one stream comes back by itself,
and every event is in the table once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from deltaworks.control import paths
from deltaworks.control.guard import parent_of
from deltaworks.control.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.local.environment import load_env
from deltaworks.local.home import StackHome
from deltaworks.local.landing_sink import landing_sink
from deltaworks.local.processes import stack_processes
from deltaworks.local.stack import down, status, up
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog, load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

pytestmark = pytest.mark.integration

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


def _project(folder: Path) -> Path:
    """A project of one small pipeline on this checkout's code."""
    include = folder / "include"
    (include / "pipelines" / "clicks").mkdir(parents=True)
    (include / "pipelines" / "clicks" / "pipeline.yaml").write_text(PIPELINE)
    (include / "environments").mkdir()
    environment = (PROJECT_ROOT / "include" / "environments" / "local.yaml").read_text()
    (include / "environments" / "local.yaml").write_text(environment.partition("overrides:")[0])
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    for name in ("include/deltaworks", "include/spark", "include/jars", "spark_jobs", "plugins", "dags"):
        (folder / name).symlink_to(PROJECT_ROOT / name)
    return folder


@dataclass
class Sender:
    """Lands one object of numbered events a second until it is closed."""

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

    def close(self) -> int:
        """Stop; the number of events landed."""
        self._end.set()
        self._thread.join(timeout=30)
        return self.sent


@dataclass
class Stage:
    """The running stack and what the tests look at in it."""

    home: StackHome
    catalog: Catalog
    sender: Sender

    def beat(self) -> Heartbeat | None:
        objects = open_objects(self.catalog.environment.lake)
        return read_heartbeat(objects, paths.pipeline_control("clicks", "heartbeat.json"))

    def rows(self) -> list[dict[str, int]]:
        found = Lake(self.catalog.environment.lake).rows(paths.table("clicks", "clicks"), columns=["number"])
        return [] if found is None else found.to_pylist()

    def await_progress(self, after: int) -> Heartbeat:
        """Wait until a live stream has landed rows beyond `after`."""

        def moving() -> bool:
            beat = self.beat()
            return beat is not None and psutil.pid_exists(beat.pid) and len(self.rows()) > after

        wait(moving, "no stream is landing rows", BACK_SECONDS)
        beat = self.beat()
        assert beat is not None
        return beat


def wait(condition: Callable[[], bool], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.5)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    project = _project(tmp_path_factory.mktemp("project"))
    before = dict(os.environ)
    os.environ["DELTAWORKS_PROJECT"] = str(project)
    home = StackHome.at(project / "home", project=project, dags_folder=project / "dags")
    try:
        up(home=home)
        load_env(home)
        catalog = load_catalog("local", root=project)
        sender = Sender(catalog)
        yield Stage(home, catalog, sender)
        sender.close()
    finally:
        down(home=home, grace_seconds=30)
        os.environ.clear()
        os.environ.update(before)


def ancestors(pid: int) -> dict[str, int]:
    """The processes of a stream: driver, its JVM, the task's runner, and that one's supervisor."""
    names = ("driver", "jvm", "runner", "supervisor")
    found: dict[str, int] = {}
    current: int | None = pid
    for name in names:
        assert current is not None
        found[name] = current
        current = parent_of(current)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["driver", "jvm", "runner", "supervisor"])
def test_a_killed_process_leaves_nothing_that_writes_and_the_stream_comes_back(stage: Stage, victim: str) -> None:
    before = stage.await_progress(len(stage.rows()))
    family = ancestors(before.pid)

    os.kill(family[victim], signal.SIGKILL)

    gone = (family["driver"], family["jvm"])
    wait(lambda: not any(alive(pid) for pid in gone), f"{victim}: driver or JVM outlived it", GONE_SECONDS)
    after = stage.await_progress(len(stage.rows()))
    assert after.pid != before.pid
    assert after.epoch > before.epoch


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["airflow-scheduler", "airflow-api-server"])
def test_a_killed_airflow_process_comes_back_and_the_stream_goes_on(stage: Stage, program: str) -> None:
    stage.await_progress(len(stage.rows()))
    (pid,) = (item.pid for item in status(home=stage.home).programs if item.name == program)
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    wait(lambda: not alive(pid), f"{program} did not die", 10)
    wait(lambda: status(home=stage.home).healthy, f"{program} did not come back", BACK_SECONDS)
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_in_the_end_every_event_is_there_once_and_owners_never_wrote_in_turns(stage: Stage) -> None:
    sent = stage.sender.close()

    wait(lambda: len(stage.rows()) >= sent, f"not all of {sent} events arrived", BACK_SECONDS)

    assert sorted(row["number"] for row in stage.rows()) == list(range(sent))
    lake = Lake(stage.catalog.environment.lake)
    key = paths.table("clicks", "clicks")
    table = lake.open(key)
    assert table is not None
    runs = [commit.metadata.get("run") for commit in commit_history(lake, key, newest=table.version())]
    turns = [run for run, _ in groupby(runs)]
    assert len(turns) == len(set(turns)), "a run wrote again after its successor had begun"
    assert len(turns) >= 5


@pytest.mark.timeout(300)
def test_a_stop_ends_every_process_of_the_stack(stage: Stage) -> None:
    report = down(home=stage.home, grace_seconds=90)

    assert report.was_running
    assert not report.killed
    assert not stack_processes(stage.home)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
