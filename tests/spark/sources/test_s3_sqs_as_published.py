"""`format("s3-sqs")` with its two documented options: the state is below the query's checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sources.conftest import aws_endpoint, landing
from tests.waiting import eventually

__all__ = ["aws_endpoint", "landing"]
pytestmark = pytest.mark.integration
PROJECT = Path(__file__).resolve().parents[3]
JARS = str(PROJECT / "include" / "jars" / "target" / "jars" / "*")


class Published:
    """A folder with a checkpoint and an output, and the processes over it."""

    def __init__(self, landing: Any, root: Path) -> None:
        self.landing, self.root = landing, root
        self.running: subprocess.Popen[bytes] | None = None

    def start(self, how: str, *, class_path: str = JARS) -> subprocess.Popen[bytes]:
        """A process of the query; its output is below the folder."""
        settings = {
            "AWS_ENDPOINT_URL": self.landing.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "PYTHONPATH": str(PROJECT / "include"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 600m pyspark-shell",
        }
        command = [sys.executable, str(Path(__file__).with_name("published_query.py")), self.landing.queue_url]
        command += [f"{self.root}/checkpoint", f"{self.root}/output", class_path, how]
        with (self.root / "log").open("ab") as log:
            # A group of its own, so that JVM and Python workers end with it, whichever way it ends.
            self.running = subprocess.Popen(
                command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True
            )
        return self.running

    def run(self, **options: str) -> str:
        """Run it to the end of the queue; the end of what it said, where it failed."""
        process = self.start("once", **options)
        code = process.wait(300)
        text = (self.root / "log").read_text(errors="replace").replace("\r", "\n").splitlines()
        return "" if code == 0 else "\n".join(line[:500] for line in text if not line.startswith("[Stage"))[-20_000:]

    def kill(self) -> None:
        """End the driver, its JVM and its workers at once, without a word to any of them."""
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def ids(self) -> list[int]:
        """The ids in the output's committed files."""
        import pyarrow.parquet as pq

        batches = [path for path in (self.root / "output" / "_spark_metadata").glob("*") if path.name.isdigit()]
        files = [
            json.loads(line)["path"]
            for batch in batches
            for line in batch.read_text(encoding="utf-8").splitlines()
            if line.startswith("{")
        ]
        tables = [pq.read_table(path.removeprefix("file://")) for path in files]
        return sorted(each for table in tables for each in table.column("id").to_pylist())


@pytest.fixture
def published(landing: Any, tmp_path: Path) -> Iterator[Published]:
    landing.returns_after(20)
    harness = Published(landing, tmp_path)
    yield harness
    harness.kill()


def test_a_killed_query_with_two_options_neither_loses_nor_duplicates_rows_on_restart(
    published: Published,
) -> None:
    for number in range(4):
        published.landing.put(f"clicks/{number}.json", body=b'{"id": %d}' % number)
    published.start("on")
    eventually(lambda: published.ids() == [0, 1, 2, 3], "the first objects are read", seconds=240)
    for number in range(4, 24):
        published.landing.put(f"clicks/{number}.json", body=b'{"id": %d}' % number)
    eventually(lambda: len(published.ids()) > 4, "a batch with later objects has landed", seconds=60)
    published.kill()
    # Announced again, as S3 may do, and once more while nothing runs.
    published.landing.put("clicks/24.json", body=b'{"id": 24}')
    published.landing.put("clicks/3.json", body=b'{"id": 3}')

    if said := published.run():
        pytest.fail(said)

    assert published.ids() == list(range(25))
    assert published.landing.waiting() == (0, 0)
    states = [path.name for path in (published.root / "checkpoint" / "sources").iterdir()]
    assert [name.startswith("s3_sqs-") for name in states] == [True]


def test_without_the_jars_the_query_requires_a_state_location(published: Published) -> None:
    published.landing.put("clicks/1.json", body=b'{"id": 1}')

    said = published.run(class_path="")

    assert "SOURCE_OPTION_INVALID" in said
    assert "the option 'stateLocation' is required" in said
    assert published.landing.waiting() == (1, 0)
