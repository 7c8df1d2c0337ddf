"""A batch on a real standalone cluster: a master and two workers in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from deltaworks.specs.catalog import PROJECT_ROOT

pytestmark = [pytest.mark.spark, pytest.mark.integration]
SPARK_HOME = Path(pyspark.__file__).parent
STARTED_WITHIN_SECONDS = 60.0
DRIVER = """
import json, os, sys, time
from pathlib import Path
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.spark.session import build_session
from tests.spark.engine.conftest import DECLARED, Shop

root, master = Path(sys.argv[1]), sys.argv[2]
conf = {
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
}
environment = EnvironmentSpec.model_validate({
    "environment": "tests", "lake": {"root": f"file://{root}/lake"}, "landing": {"root": f"file://{root}/landing"},
    "messaging": {}, "spark": {"conf": conf},
})
spark = build_session(environment, app_name="cluster", master=master)

def where(_):
    import deltaworks
    time.sleep(0.5)
    return os.environ["SPARK_EXECUTOR_DIRS"], deltaworks.__file__

deadline = time.monotonic() + 30
while len(found := set(spark.sparkContext.parallelize(range(4), 4).map(where).collect())) < 2:
    assert time.monotonic() < deadline, found
shop = Shop(spark, root, PipelineSpec.model_validate(DECLARED), environment)
report = shop.processor().process(shop.land_files(1, 2, 3, 4), 0)
print("RESULT " + json.dumps({
    "executors": len({executor for executor, _ in found}),
    "libraries": sorted({library for _, library in found}),
    "equal": shop.landed() == shop.expected(1, 2, 3, 4),
    "rows": report.rows,
    "files_by_task": report.files_written,
}), flush=True)
spark.stop()
"""


class Daemon:
    """A Spark daemon in a process of its own; `ready` is what its output says once it is up."""

    def __init__(self, *arguments: str, ready: str, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        self._name = arguments[0]
        self._ready = ready
        self._said: list[str] = []
        self._found: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            match = re.search(self._ready, line)
            if match:
                self._found.put(match.group(1))

    def wait(self) -> str:
        """What `ready` matched."""
        try:
            return self._found.get(timeout=STARTED_WITHIN_SECONDS)
        except queue.Empty:
            pytest.fail(f"{self._name} did not start:\n" + "".join(self._said))

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=30)
        self._reader.join(timeout=10)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers, one core each."""
    deploy, local = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, ready: str) -> Daemon:
            return stack.enter_context(contextlib.closing(Daemon(*arguments, ready=ready, folder=tmp_path)))

        address = start(f"{deploy}.master.Master", *local, ready=r"Starting Spark master at (spark://\S+)").wait()
        workers = []
        for number in (1, 2):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker{number}"))
            ready = r"Successfully registered with master (\S+)"
            workers.append(start(f"{deploy}.worker.Worker", *local, *work, address, ready=ready))
        for worker in workers:
            worker.wait()
        yield address


def test_a_batch_is_written_by_two_executors_that_get_the_library_from_the_driver(master: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    path = os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)])
    started = time.monotonic()

    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path), master],
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    lines = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, ran.stderr[-4000:]
    result = json.loads(lines[0])
    assert result["executors"] == 2
    assert all("deltaworks.zip" in library for library in result["libraries"])
    assert result["equal"]
    assert result["rows"] > 0
    assert time.monotonic() - started < 240
