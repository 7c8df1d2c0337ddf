"""The start script of driver and executor pods passes on Spark's arguments, and the image has what these need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from deltaworks.kubernetes.pods import executor_pod
from deltaworks.specs.environment_sections import KubernetesSpec
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[3]
EXECUTOR = {
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2048m",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "games-exec-3",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_HOME": "/spark",
    "SPARK_CLASSPATH": "/jars/*",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} of twelve" for number in range(12)},
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Stand-ins of java and spark-submit that print their arguments, one a line."""
    for name in ("java", "spark-submit"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name}\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(programs: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_process(
        ["bash", str(ROOT / "docker" / "spark_pod.sh"), *arguments],
        env={"PATH": f"{programs}:{os.environ['PATH']}", **variables},
    )


def test_a_driver_runs_what_it_was_submitted_with_and_listens_on_its_own_address(programs: Path) -> None:
    submitted = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///job one.py", "--pipeline", "games"]

    done = run(programs, "driver", *submitted, SPARK_DRIVER_BIND_ADDRESS="10.0.0.5")

    lines = done.stdout.splitlines()
    assert lines[0] == "spark-submit"
    assert lines[-len(submitted) :] == submitted
    assert "spark.driver.bindAddress=10.0.0.5" in lines
    assert lines[lines.index("--deploy-mode") + 1] == "client"


def test_an_executor_has_its_options_whole_and_in_order(programs: Path) -> None:
    lines = run(programs, "executor", **EXECUTOR).stdout.splitlines()

    assert lines[:13] == ["java", *(f"-Dnumber={number} of twelve" for number in range(12))]
    assert lines[lines.index("-cp") + 1] == "/opt/spark/conf:/jars/*:/spark/jars/*"
    assert {"-Xms2048m", "-Xmx2048m"} <= set(lines)
    options = {lines[at]: lines[at + 1] for at, line in enumerate(lines) if line.startswith("--")}
    assert options == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "games-exec-3",
    }


@pytest.mark.parametrize("arguments", [(), ("scheduler",), ("driver",), ("executor",)])
def test_anything_else_is_refused(programs: Path, arguments: tuple[str, ...]) -> None:
    done = run(programs, *arguments)

    assert done.returncode != 0
    assert done.stderr
    assert not done.stdout


def test_the_image_for_pods_is_that_of_the_containers_with_these_packages_and_the_script() -> None:
    lines = (ROOT / "docker" / "kubernetes.Dockerfile").read_text()

    assert "FROM ${IMAGE}" in lines
    assert re.search(r"pip install [^\n]*--no-deps --require-hashes", lines)
    copied = re.findall(r"^COPY --chown=airflow:0 (\S+) ", lines, re.MULTILINE)
    assert copied == ["requirements-kubernetes.lock", "docker/spark_pod.sh"]
    # What is copied goes to the build, and is where the template of a pod looks for it.
    assert {f"!{source}" for source in copied} <= set((ROOT / ".dockerignore").read_text().splitlines())
    template = executor_pod(KubernetesSpec(image="x"))["spec"]["containers"][0]["command"]
    assert template[-1] == "/opt/deltaworks/spark_pod.sh"
