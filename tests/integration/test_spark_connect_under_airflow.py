"""The Spark Connect server as its DAG, under real Airflow processes and on a lake with the protocol of S3."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.specs.dag_ids import SPARK_CONNECT_DAG
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    AirflowHarness,
    Sender,
    clicks_project,
    people_of,
    running_stack,
    wait,
)
from tests.integration.test_prometheus import free_port

pytestmark = pytest.mark.timeout(900)
TOKEN = "a-token-that-only-this-test-has"
CLIENT = """
import sys
from pyspark.sql import SparkSession

print(SparkSession.builder.remote(sys.argv[1]).getOrCreate().table("clicks.clicks").count())
"""


def test_its_dag_serves_remote_sessions_that_read_what_the_stream_has_landed(tmp_path: Path) -> None:
    port, project = free_port(), clicks_project(tmp_path / "project")
    with (project / "include" / "environments" / "local.yaml").open("a") as file:
        file.write(f"spark_connect: {{listen: {{port: {port}}}, token: env:CLICKS_CONNECT_TOKEN}}\n")
    with running_stack(project, variables={"CLICKS_CONNECT_TOKEN": TOKEN}) as (home, catalog):
        harness, objects = AirflowHarness(home, catalog, Sender(catalog)), open_objects(catalog.environment.lake)
        harness.await_progress(after=0)
        sent, _, _ = harness.settle()
        with people_of(home) as people:
            wait(lambda: any(one.dag_id == SPARK_CONNECT_DAG for one in people.dags()), "no DAG", BACK_SECONDS)
            people.unpause(SPARK_CONNECT_DAG)

            def serves() -> bool:
                beat = read_heartbeat(objects, paths.heartbeat(paths.spark_connect_control()))
                return beat is not None and beat.state == "idle"

            wait(serves, "it does not serve", BACK_SECONDS)
            command = [sys.executable, "-c", CLIENT, f"sc://localhost:{port}/;token={TOKEN}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

            assert done.stdout.strip() == str(sent), done.stderr
            (run, *_) = people.dag_runs(SPARK_CONNECT_DAG)
            log = "\n".join(people.task_log(SPARK_CONNECT_DAG, run.run_id, "serve", 1))
            assert f"Serving Spark Connect on 127.0.0.1:{port}" in log
            assert TOKEN not in log
