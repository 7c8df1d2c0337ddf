"""What spark-submit and a driver make in a cluster, of the settings and templates of an environment: pods that fit the
schemas of Kubernetes, with the accounts, variables and sizes that are declared, by rights that their accounts have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deltaworks.kubernetes.accounts import accounts
from deltaworks.kubernetes.spark_pods import pod_settings
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.share_conf import launch_of
from deltaworks.specs.spark_conf import submit_conf
from tests.spark.kubernetes.cluster_api import ClusterApi, running_api
from tests.unit.kubernetes.schemas import VERSIONS, check

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = EnvironmentSpec.model_validate(
    {
        "environment": "cluster",
        "lake": {"root": "s3://lake", "access_key": "env:LAKE_KEY", "secret_key": "env:LAKE_SECRET"},
        "landing": {"root": "s3://landing"},
        "messaging": {},
        "spark": {"protected": True, "driver_memory": "700m"},
        "shares": {"gold": {"executors": 1, "executor_cores": 2, "executor_memory": "3g", "python_memory": "1g"}},
        "kubernetes": {"image": "registry.example.com/deltaworks:1", "namespace": "lakehouse"},
    }
)
#: A driver that has asked for its executors ends.
DRIVER = """\
import time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
time.sleep(8)
spark.stop()
"""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("templates")))
        assert ENVIRONMENT.kubernetes is not None
        yield pod_settings(ENVIRONMENT.kubernetes, ["LAKE_KEY", "LAKE_SECRET"])


def submit(api: ClusterApi, templates: Mapping[str, str], *arguments: str, **more: str) -> None:
    master = f"k8s://{api.address}"
    conf = templates | submit_conf(ENVIRONMENT, ROOT, launch_of(ENVIRONMENT.shares.of("gold"), master, ENVIRONMENT))
    conf |= {"spark.kubernetes.namespace": "lakehouse", **more}
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        ["spark-submit", "--master", master, *settings, *arguments],
        env={**os.environ, "KUBERNETES_AUTH_TRYKUBECONFIG": "false"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def rights(role: str) -> set[tuple[str, str]]:
    """What a role may do, as verbs of kinds."""
    assert ENVIRONMENT.kubernetes is not None
    (rule,) = next(
        item["rules"]
        for item in accounts(ENVIRONMENT.kubernetes)
        if (item["kind"], item["metadata"]["name"]) == ("Role", role)
    )
    return {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}


def checked(pod: dict[str, Any]) -> dict[str, Any]:
    """The spec of a pod that is of the schema, its one container with it."""
    for version in VERSIONS:
        check(pod, version)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example.com/deltaworks:1"
    assert container["command"][-1] == "/opt/deltaworks/spark_pod.sh"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    return dict(container)


def test_a_submission_makes_the_pod_of_a_driver_by_the_rights_of_airflows_tasks(templates: dict[str, str]) -> None:
    job = f"local://{ROOT}/spark_jobs/rebuild_gold.py"
    with running_api() as api:
        waits = {"spark.kubernetes.submission.waitAppCompletion": "false"}
        submit(api, templates, "--deploy-mode", "cluster", "--name", "gold", job, "--pipeline", "games", **waits)

    (pod,) = api.of_kind("pods")
    container = checked(pod)
    assert pod["spec"]["serviceAccountName"] == "deltaworks-driver"
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == [job, "--pipeline", "games"]
    keys = {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]["key"]
        for variable in container["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    }
    assert keys == {"LAKE_KEY": "LAKE_KEY", "LAKE_SECRET": "LAKE_SECRET"}
    assert {"SPARK_DRIVER_BIND_ADDRESS", "SPARK_CONF_DIR"} <= {variable["name"] for variable in container["env"]}
    assert container["resources"]["requests"]["cpu"] == "1"
    for config in api.of_kind("configmaps"):
        for version in VERSIONS:
            check({"apiVersion": "v1", "kind": "ConfigMap", **config}, version)
    assert api.verbs <= rights("deltaworks-submitter"), api.verbs - rights("deltaworks-submitter")


def test_a_driver_makes_executors_of_its_share_by_its_own_rights(templates: dict[str, str], tmp_path: Path) -> None:
    job = tmp_path / "driver.py"
    job.write_text(DRIVER)
    with running_api() as api:
        submit(api, templates, "--deploy-mode", "client", str(job))

    executors = api.of_kind("pods")
    assert len(executors) == 1
    container = checked(executors[0])
    assert executors[0]["spec"]["serviceAccountName"] == "deltaworks"
    assert executors[0]["spec"]["automountServiceAccountToken"] is False
    assert container["args"] == ["executor"]
    assert not [variable for variable in container["env"] if "secretKeyRef" in variable.get("valueFrom", {})]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi"}
    assert api.verbs <= rights("deltaworks-driver"), api.verbs - rights("deltaworks-driver")
    # What the script of the pod hands on, Spark sets.
    script = (ROOT / "docker" / "spark_pod.sh").read_text()
    names = {variable["name"] for variable in container["env"]}
    assert {name for name in names if name.startswith("SPARK_EXECUTOR_") and name in script} >= {
        "SPARK_EXECUTOR_ID",
        "SPARK_EXECUTOR_CORES",
        "SPARK_EXECUTOR_MEMORY",
        "SPARK_EXECUTOR_POD_IP",
        "SPARK_EXECUTOR_POD_NAME",
    }
    assert {"SPARK_DRIVER_URL", "SPARK_APPLICATION_ID", "SPARK_RESOURCE_PROFILE_ID"} <= names
