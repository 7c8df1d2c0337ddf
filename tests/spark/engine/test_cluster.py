"""Batches and resource shares on a real standalone cluster: master and workers in separate processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.spark_conf import AUTHENTICATION_SETTINGS
from tests.spark.engine.standalone import Cluster, run_driver, standalone_cluster

SECRET = "cluster-secret-of-this-test"
DRIVER = """
import json, os, sys, time
from pathlib import Path
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.spark_session import build_session
from tests.spark.engine.conftest import DECLARED, Shop

root, master = Path(sys.argv[1]), sys.argv[2]
conf = {
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
}
secret = {"secret": "env:DELTAWORKS_SPARK_SECRET"} if "DELTAWORKS_SPARK_SECRET" in os.environ else {}
protection = {"protected": bool(secret), **secret}
environment = EnvironmentSpec.model_validate({
    "environment": "tests", "lake": {"root": f"file://{root}/lake"}, "landing": {"root": f"file://{root}/landing"},
    "messaging": {}, "spark": {"conf": conf, **protection},
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
#: A driver without a secret, with another one, or with the cluster's own.
STRANGER = f"""
import sys
from pyspark.sql import SparkSession
from deltaworks.specs.spark_conf import AUTHENTICATION_SETTINGS, SPARK_SECRET_KEY

master, how = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m")
if how != "plain":
    for name, (value, _) in AUTHENTICATION_SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config(SPARK_SECRET_KEY, "{SECRET}" if how == "right" else "another-secret")
spark = builder.getOrCreate()
rows = spark.sparkContext.parallelize(range(300), 3).map(lambda n: (n % 3, b"x" * 20_000)).groupByKey().count()
print("RAN", rows, flush=True)
spark.stop()
"""


@pytest.mark.integration
@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "protected"])
def test_a_batch_is_written_by_two_executors_that_get_the_library_from_the_driver(tmp_path: Path, secret: str) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with standalone_cluster(tmp_path, secret=secret) as cluster:
        ran = run_driver(script, str(tmp_path), cluster.address, secret=secret)

    lines = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, ran.stderr[-4000:]
    result = json.loads(lines[0])
    assert result["executors"] == 2
    assert all("deltaworks.zip" in library for library in result["libraries"])
    assert result["equal"]
    assert result["rows"] > 0


@pytest.mark.integration
def test_a_driver_without_the_clusters_secret_gets_no_executor(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(STRANGER)
    with (
        standalone_cluster(tmp_path, workers=1, secret=SECRET) as cluster,
        ThreadPoolExecutor(max_workers=3) as drivers,
    ):
        attempts = [drivers.submit(run_driver, script, cluster.address, how) for how in ("plain", "wrong", "right")]
        plain, wrong, right = (attempt.result() for attempt in attempts)
        master, command_lines = cluster.master.output, [cluster.master.command_line, cluster.workers[0].command_line]

    assert "RAN 3" in right.stdout, right.stderr[-4000:]
    for refused in (plain, wrong):
        assert refused.returncode != 0
        assert "RAN" not in refused.stdout
    assert len(re.findall(r"Registered app (\w+)", master)) == 1, master
    assert not any(SECRET in text for text in (*command_lines, master, right.stdout, right.stderr))
    assert SECRET not in "".join(path.read_text(errors="replace") for path in tmp_path.glob("worker1/**/std*"))


@pytest.mark.integration
def test_daemons_and_drivers_have_the_same_settings() -> None:
    script = (PROJECT_ROOT / "docker" / "spark.sh").read_text()
    written = dict(re.findall(r"^(spark\.[\w.]+)=(\S+)$", script, re.MULTILINE))

    assert written.pop("spark.authenticate.secret") == "${DELTAWORKS_SPARK_SECRET}"
    assert written.pop("spark.master.rest.enabled") == "false", "submissions over REST need no secret"
    assert written.items() <= {name: value for name, (value, _) in AUTHENTICATION_SETTINGS.items()}.items()
    assert {"spark.authenticate", "spark.network.crypto.enabled"} <= written.keys()


STREAMS = 3
#: A driver is a JVM and a Python process; several start beside one another.
STARTED_WITHIN_SECONDS = 240.0
#: Many times what the master takes to hand out an executor.
WAIT_SECONDS = 20.0
LOADED_DRIVER = """
import sys, time
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.tables.spark_session import build_session

root, master, name, job_class = sys.argv[1:]
one = {"executors": 1, "executor_cores": 1, "executor_memory": "512m"}
here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
environment = EnvironmentSpec.model_validate({
    "environment": "tests", "lake": {"root": f"file://{root}/lake"}, "landing": {"root": f"file://{root}/landing"},
    "messaging": {}, "spark": {"conf": here, "driver_memory": "512m", "protected": False},
    "shares": {"cluster": {"workers": 2, "worker_cores": 3, "worker_memory": "2g"}, "stream": one, "gold": one},
})
share = None if job_class == "none" else environment.shares.of(job_class)
spark = build_session(environment, app_name=name, master=master, share=share)
print("STARTED", flush=True)
if name.startswith("gold"):
    print("ANSWER", spark.range(0, 1000, 1, 2).groupBy("id").count().count(), flush=True)
    sys.exit(0)
rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
query = rows.writeStream.format("noop").trigger(processingTime="1 second").start()
landed = 0
while query.isActive:
    progress = query.lastProgress
    if progress is not None and progress["batchId"] >= landed:
        landed = progress["batchId"] + 1
        print("BATCH", flush=True)
    time.sleep(0.2)
"""


def wait_for(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Returns whether a condition holds within the given seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@dataclass(frozen=True)
class Driver:
    """A driver in its own process."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def has_printed(self, word: str) -> int:
        """Counts output lines that begin with a word."""
        return sum(line.split()[:1] == [word] for line in self.log.read_text(errors="replace").splitlines())

    def wait_until_printed(self, word: str) -> bool:
        """Returns whether it prints a word in time."""
        return wait_for(lambda: self.has_printed(word) > 0, seconds=STARTED_WITHIN_SECONDS)

    def makes_progress(self) -> bool:
        """Returns whether it completes another batch."""
        before = self.has_printed("BATCH")
        return wait_for(lambda: self.has_printed("BATCH") > before + 1, seconds=120)


@dataclass(frozen=True)
class Jobs:
    """Starts drivers on a cluster, with or without shares."""

    folder: Path
    cluster: Cluster
    shares: bool

    @contextmanager
    def driver(self, name: str, job_class: str) -> Iterator[Driver]:
        """Runs a driver during the block."""
        script, log = self.folder / "driver.py", self.folder / f"{name}.log"
        if not script.exists():
            script.write_text(LOADED_DRIVER)
        path = os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, script, self.folder, self.cluster.address, name, job_class if self.shares else "none"],
                env=os.environ | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        driver = Driver(name, log, process)
        try:
            yield driver
        finally:
            jvms = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            process.wait(timeout=30)
            _, alive = psutil.wait_procs(jvms, timeout=60)
            assert not alive

    @contextmanager
    def streams(self, number: int) -> Iterator[list[Driver]]:
        """Returns streams that have each completed a batch."""
        with ExitStack() as stack:
            names = [f"stream{one}" for one in range(1, number + 1)]
            streams = [stack.enter_context(self.driver(name, "stream")) for name in names]
            for stream in streams:
                assert stream.wait_until_printed("BATCH"), stream.log.read_text()
            yield streams

    def cores_of(self, name: str) -> int:
        """Returns an application's cores."""
        return sum(app["cores"] for app in self.cluster.state()["activeapps"] if app["name"] == name)


@contextmanager
def jobs_on_a_cluster(folder: Path, *, shares: bool) -> Iterator[Jobs]:
    with standalone_cluster(folder, workers=2, cores=3, memory="2g") as cluster:
        yield Jobs(folder, cluster, shares)


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_without_shares_one_stream_has_the_whole_cluster_and_gold_waits(tmp_path: Path) -> None:
    with (
        jobs_on_a_cluster(tmp_path, shares=False) as jobs,
        jobs.streams(1),
        jobs.driver("gold1", "gold") as gold,
    ):
        assert gold.wait_until_printed("STARTED"), gold.log.read_text()
        assert jobs.cores_of("stream1") == jobs.cluster.state()["cores"] == 6
        assert not wait_for(lambda: gold.has_printed("ANSWER") > 0 or jobs.cores_of("gold1") > 0, seconds=WAIT_SECONDS)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with jobs_on_a_cluster(tmp_path_factory.mktemp("shares"), shares=True) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def streams(jobs: Jobs) -> Iterator[list[Driver]]:
    with jobs.streams(STREAMS) as streams:
        yield streams


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_gold_gets_its_cores_immediately_with_three_streams(jobs: Jobs, streams: list[Driver]) -> None:
    with jobs.driver("gold1", "gold") as gold:
        assert gold.wait_until_printed("ANSWER"), gold.log.read_text()

    assert {stream.name: jobs.cores_of(stream.name) for stream in streams} == {
        f"stream{number}": 1 for number in range(1, STREAMS + 1)
    }
    assert all(stream.makes_progress() for stream in streams)


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_executors_of_a_lost_worker_are_replaced_and_a_worker_that_is_added_is_used(
    jobs: Jobs, streams: list[Driver]
) -> None:
    busiest = max(jobs.cluster.workers, key=lambda worker: len(worker.executors))
    lost = busiest.executors
    assert lost

    busiest.kill()

    assert wait_for(lambda: jobs.cluster.state()["aliveworkers"] == 1, seconds=120)
    assert not psutil.wait_procs(lost, timeout=60)[1], "executors end with their worker"
    assert wait_for(lambda: all(jobs.cores_of(stream.name) == 1 for stream in streams), seconds=120)
    assert all(stream.makes_progress() for stream in streams)

    with jobs.driver("gold2", "gold") as gold:
        assert gold.wait_until_printed("STARTED"), gold.log.read_text()
        assert not wait_for(lambda: jobs.cores_of("gold2") > 0, seconds=5), "the worker that is left is full"
        jobs.cluster.add_worker()
        assert gold.wait_until_printed("ANSWER"), gold.log.read_text()
