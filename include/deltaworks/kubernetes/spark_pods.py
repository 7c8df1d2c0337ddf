"""Pod templates of Spark drivers and executors for spark-submit, with the parts that Spark does not set itself.

Spark sets image, resources, its own variables and folders. Drivers get the variables that the environment and its
pipelines refer to. Executors get no secrets: storage keys are sent with their tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from deltaworks.kubernetes.pods import (
    ACCOUNT,
    DRIVER_ACCOUNT,
    Manifest,
    container_security,
    from_secret,
    from_settings,
    labels,
    pod_security,
)
from deltaworks.specs.base import find_references, resolve_text
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.kubernetes import KubernetesSpec
from deltaworks.specs.pipeline import PipelineSpec

#: Entry point of drivers and executors in docker/kubernetes.Dockerfile.
_ENTRY_POINT = ("/usr/bin/dumb-init", "--", "bash", "/opt/deltaworks/spark_pod.sh")


def driver_variables(environment: EnvironmentSpec, pipelines: Iterable[PipelineSpec]) -> set[str]:
    """Returns the variables that the driver of these pipelines refers to."""
    stores = [environment.lake, environment.landing, environment.messaging, environment.lineage, environment.privacy]
    return {reference.name for _, reference in find_references([*stores, *pipelines])}


def driver_pod(spec: KubernetesSpec, variables: Iterable[str]) -> Manifest:
    """Returns the pod template of a driver. Variables that the Secret does not contain come from the ConfigMap."""
    return _template(spec, "driver", DRIVER_ACCOUNT, from_secret(spec, variables, optional=True))


def executor_pod(spec: KubernetesSpec) -> Manifest:
    """Returns the pod template of an executor."""
    return _template(spec, "executor", ACCOUNT, [])


def _template(spec: KubernetesSpec, role: str, account: str, variables: list[Manifest]) -> Manifest:
    secrets = [{"name": name} for name in spec.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels(role)},
        "spec": {
            "serviceAccountName": account,
            "automountServiceAccountToken": role == "driver",
            "securityContext": pod_security(),
            **({"imagePullSecrets": secrets} if secrets else {}),
            "containers": [
                {
                    "name": f"spark-{role}",
                    "command": list(_ENTRY_POINT),
                    "workingDir": "/tmp",  # noqa: S108
                    "envFrom": from_settings(),
                    "env": variables,
                    "securityContext": container_security(),
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def pod_settings(spec: KubernetesSpec, variables: Iterable[str]) -> dict[str, str]:
    """Writes the pod templates, and returns the spark-submit settings for a driver with these variables. Idempotent.

    spark-submit reads the templates from local disk while it runs.
    """
    return {
        "spark.kubernetes.container.image": resolve_text(spec.image),
        "spark.kubernetes.authenticate.driver.serviceAccountName": DRIVER_ACCOUNT,
        "spark.kubernetes.authenticate.executor.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.podTemplateFile": _write_template(driver_pod(spec, variables)),
        "spark.kubernetes.driver.podTemplateContainerName": "spark-driver",
        "spark.kubernetes.executor.podTemplateFile": _write_template(executor_pod(spec)),
        "spark.kubernetes.executor.podTemplateContainerName": "spark-executor",
    }


def _write_template(template: Manifest) -> str:
    """Writes a template and returns its path. The file name is a digest of the content, so equal templates share one
    file.
    """
    data = json.dumps(template, indent=1)
    path = Path(tempfile.gettempdir()) / f"spark-pod-{hashlib.sha256(data.encode()).hexdigest()[:16]}.yaml"
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".spark-pod-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(data)
    os.replace(temporary, path)
    return str(path)
