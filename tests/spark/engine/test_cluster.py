"""A batch on a real standalone cluster: a master and two workers in separate processes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.spark_conf import AUTHENTICATION_SETTINGS
from tests.spark.engine.standalone import run_driver, standalone_cluster

pytestmark = pytest.mark.integration
SECRET = "cluster-secret-of-this-test"
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


def test_daemons_and_drivers_have_the_same_settings() -> None:
    script = (PROJECT_ROOT / "docker" / "spark.sh").read_text()
    written = dict(re.findall(r"^(spark\.[\w.]+)=(\S+)$", script, re.MULTILINE))

    assert written.pop("spark.authenticate.secret") == "${DELTAWORKS_SPARK_SECRET}"
    assert written.pop("spark.master.rest.enabled") == "false", "submissions over REST need no secret"
    assert written.items() <= {name: value for name, (value, _) in AUTHENTICATION_SETTINGS.items()}.items()
    assert {"spark.authenticate", "spark.network.crypto.enabled"} <= written.keys()
