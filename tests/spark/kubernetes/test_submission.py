"""Objects that spark-submit creates in a cluster from an environment's settings and templates: valid by Kubernetes'
schemas, with the declared account and variables, and with the rights of Airflow tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deltaworks.kubernetes.manifests import accounts
from deltaworks.kubernetes.pods import pod_settings
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.share_conf import launch_settings
from deltaworks.specs.spark_conf import submit_conf
from tests.processes import run_process
from tests.spark.kubernetes.cluster_api import ClusterApi, running_api
from tests.unit.kubernetes.schemas import VERSIONS, check

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


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("templates")))
        assert ENVIRONMENT.kubernetes is not None
        yield pod_settings(ENVIRONMENT.kubernetes, ["LAKE_KEY", "LAKE_SECRET"])


def submit(api: ClusterApi, templates: Mapping[str, str], *arguments: str, **more: str) -> None:
    master = f"k8s://{api.address}"
    conf = templates | submit_conf(
        ENVIRONMENT, ROOT, launch_settings(ENVIRONMENT.shares.of("gold"), master, ENVIRONMENT)
    )
    conf |= {"spark.kubernetes.namespace": "lakehouse", **more}
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    done = run_process(
        ["spark-submit", "--master", master, *settings, *arguments],
        env={**os.environ, "KUBERNETES_AUTH_TRYKUBECONFIG": "false"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def requested_verbs(role: str) -> set[tuple[str, str]]:
    """Returns the permissions of a role, as verbs by kind."""
    assert ENVIRONMENT.kubernetes is not None
    rules = next(
        item["rules"]
        for item in accounts(ENVIRONMENT.kubernetes)
        if (item["kind"], item["metadata"]["name"]) == ("Role", role)
    )
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def checked(pod: dict[str, Any]) -> dict[str, Any]:
    """Validates a pod by its schema; returns its spec and its only container."""
    for version in VERSIONS:
        check(pod, version)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example.com/deltaworks:1"
    assert container["command"][-1] == "/opt/deltaworks/spark_pod.sh"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    return dict(container)


def test_a_submission_creates_the_driver_pod_with_the_rights_of_airflow_tasks(templates: dict[str, str]) -> None:
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
    for item in (*api.of_kind("configmaps"), *api.of_kind("services"), *api.of_kind("networkpolicies")):
        for version in VERSIONS:
            check(item, version)
    assert api.verbs <= requested_verbs("deltaworks-submitter"), api.verbs - requested_verbs("deltaworks-submitter")
