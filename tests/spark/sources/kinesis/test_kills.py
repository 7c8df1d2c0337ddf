"""Killed drivers and tasks, and concurrent drivers: every record once, replays equal to the first read.

Each driver is a separate process with its own JVM, so both can be killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.spark.sources.kinesis.conftest import HERE, QueryHarness
from tests.waiting import eventually

pytestmark = pytest.mark.integration
PROCESSES = HERE / "processes"
INCLUDE = HERE.parents[3] / "include"
Make = Callable[..., QueryHarness]


@dataclass
class Drivers:
    """Driver processes on one stage. What they got is told in files, in order of time."""

    harness: QueryHarness
    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, fault: str = "", checkpoint: str = "c1", **more: Any) -> subprocess.Popen[bytes]:
        options = {name: str(value) for name, value in self.harness.options(**more.pop("options", {})).items()}
        given = {
            "format": "kinesis_faulty" if fault else "kinesis",
            "options": options,
            "checkpoint": str(self.harness.root / checkpoint),
            "folder": str(self.folder),
            "master": "local[2,4]",
            **more,
        }
        environment = {
            **os.environ,
            "PYTHONPATH": f"{INCLUDE}{os.pathsep}{PROCESSES}",
            "PYSPARK_PYTHON": sys.executable,
            "DELTAWORKS_TEST_FAULT": fault,
            "DELTAWORKS_TEST_FOLDER": str(self.folder),
        }
        # A session's own gateway and arguments must not reach another driver.
        for name in [name for name in environment if name.startswith(("PYSPARK_GATEWAY", "PYSPARK_SUBMIT", "SPARK_"))]:
            del environment[name]
        with (self.harness.root / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(PROCESSES / "kinesis_driver.py"), json.dumps(given)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """The driver's Python, its JVM and all workers at once."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        self.running.remove(process)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait(150)
        self.running.remove(process)
        assert code == 0, (self.harness.root / "driver.log").read_text()[-3000:]

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def landed(self) -> list[str]:
        """What a sink holds that keeps one reading of each batch: all readings of a batch have to be equal."""
        by_batch: dict[int, dict[str, Any]] = {}
        for told in self.told():
            first = by_batch.setdefault(told["batch"], told)
            assert told["md5"] == first["md5"], f"batch {told['batch']} was read as two different ones"
        rows = [row for batch in sorted(by_batch) for row in by_batch[batch]["rows"]]
        assert len({(shard, ordinal) for shard, ordinal, _ in rows}) == len(rows)
        return [bytes.fromhex(data).decode() for _, _, data in rows]


@pytest.fixture
def drivers_on(make_harness: Make, tmp_path: Path) -> Iterator[Callable[..., Drivers]]:
    made: list[Drivers] = []

    def make(**more: Any) -> Drivers:
        folder = tmp_path / "told"
        folder.mkdir()
        made.append(Drivers(make_harness(**more), folder))
        return made[0]

    yield make
    for drivers in made:
        for process in list(drivers.running):
            drivers.kill(process)


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


@pytest.mark.parametrize("state", ["file", "s3"])
def test_a_driver_killed_between_delivery_and_commit_reads_the_same_batch_again(
    drivers_on: Callable[..., Drivers], state: str
) -> None:
    drivers = drivers_on(shards=2, state=state)
    drivers.harness.put(*numbers(0, 500))
    first = drivers.start(options={"maxRecords": 100}, pause_at=1)
    eventually((drivers.folder / "paused").exists, "the batch to be handed over", seconds=90)
    drivers.kill(first)
    drivers.harness.put(*numbers(500, 1100))

    drivers.finish(drivers.start(options={"maxRecords": 400}))

    read = [told["batch"] for told in drivers.told()]
    assert read.count(1) == 2
    assert sorted(drivers.landed(), key=int) == numbers(0, 1100)


@pytest.mark.parametrize("fault", ["before_put", "after_put", "after_rows"])
def test_a_task_killed_around_its_record_is_retried_without_loss_or_duplicates(
    drivers_on: Callable[..., Drivers], fault: str
) -> None:
    drivers = drivers_on(shards=2)
    drivers.harness.put(*numbers(0, 900))

    drivers.finish(drivers.start(fault=fault, options={"maxRecords": 400}, actions=2))

    assert (drivers.folder / "died").exists()
    assert sorted(drivers.landed(), key=int) == numbers(0, 900)


def test_two_live_drivers_on_one_state_get_the_same_batches(drivers_on: Callable[..., Drivers]) -> None:
    drivers = drivers_on(shards=2)
    drivers.harness.put(*numbers(0, 100))
    drivers.finish(drivers.start())
    # A second driver continues from the same place, as after a failover of which the first one knows nothing.
    shutil.copytree(drivers.harness.root / "c1", drivers.harness.root / "c2")
    both = [drivers.start(checkpoint=name, available_now=False, options={"maxRecords": 60}) for name in ("c1", "c2")]
    for begin in range(100, 1000, 100):
        drivers.harness.put(*numbers(begin, begin + 100))
        eventually(lambda: len(set(drivers.landed())) >= begin + 100, "both to read on", seconds=120)  # noqa: B023
        if begin == 400:
            drivers.harness.split(0, at=str(1 << 126))
    eventually(lambda: all(counts(drivers)[batch] > 1 for batch in list(counts(drivers))[1:3]), "both to have read")
    for process in both:
        assert process.poll() is None
        drivers.kill(process)

    assert sorted(drivers.landed(), key=int) == numbers(0, 1000)


def counts(drivers: Drivers) -> dict[int, int]:
    found: dict[int, int] = {}
    for told in drivers.told():
        found[told["batch"]] = found.get(told["batch"], 0) + 1
    return found


def test_the_control_without_stored_ends_reads_two_different_batches(drivers_on: Callable[..., Drivers]) -> None:
    drivers = drivers_on()
    drivers.harness.put(*numbers(0, 100))
    process = drivers.start(fault="unprotected", actions=2, pause_at=0, available_now=False)
    eventually((drivers.folder / "paused").exists, "the first action", seconds=90)
    drivers.harness.put(*numbers(100, 150))
    (drivers.folder / "go").touch()
    eventually(lambda: len(drivers.told()) >= 2, "the second action", seconds=60)
    drivers.kill(process)

    first, second = drivers.told()[:2]
    assert (len(first["rows"]), len(second["rows"])) == (100, 150)
    with pytest.raises(AssertionError, match="two different ones"):
        drivers.landed()
