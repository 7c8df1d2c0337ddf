"""Builds pods: the parts common to all pods, and the templates of Spark drivers and executors for spark-submit.

Variables that are not secrets come from one ConfigMap, all others from one Secret. Each container gets only the secrets
that its process refers to.

Spark sets image, resources, its own variables and folders; the templates have the other parts. Drivers get the
variables that the environment and its pipelines refer to. Executors get no secrets: storage keys are sent with their
tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deltaworks.specs.base import Reference, find_references, resolve_text
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.environment_sections import KubernetesSpec, PodSize
from deltaworks.specs.pipeline import PipelineSpec

Manifest = dict[str, Any]
#: UID of the image's user.
USER: Final = 50_000
SETTINGS: Final = "deltaworks-settings"
ACCOUNT, DRIVER_ACCOUNT = "deltaworks", "deltaworks-driver"
#: Service account that only vault jobs use.
VAULT_ACCOUNT: Final = "deltaworks-vault"
#: Command that replaces the image's entry point, which would wait for Airflow's database.
_ENTRY_POINT = ("/usr/bin/dumb-init", "--")


def metadata(spec: KubernetesSpec, name: str, component: str, instance: str = "") -> Manifest:
    """Returns the metadata of an object: name, namespace and labels."""
    return {"name": name, "namespace": spec.namespace, "labels": labels(component, instance)}


def labels(component: str, instance: str = "") -> dict[str, str]:
    """Returns the labels that select a component's objects."""
    own = {"app.kubernetes.io/name": "deltaworks", "app.kubernetes.io/component": component}
    return own | ({"app.kubernetes.io/instance": instance} if instance else {})


def pod_security() -> Manifest:
    """Returns the pod security context, which meets Kubernetes' `restricted` standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": 0,
        "fsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Returns the container security context. Only /tmp and Spark's mounts are writable."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def from_settings() -> list[Manifest]:
    """Returns the reference to the ConfigMap with all variables that are not secrets."""
    return [{"configMapRef": {"name": SETTINGS}}]


def from_secret(spec: KubernetesSpec, names: Iterable[str], *, optional: bool = False) -> list[Manifest]:
    """Returns references to variables of the Secret by name."""
    more = {"optional": True} if optional else {}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": spec.secret, "key": name, **more}}}
        for name in sorted(names)
    ]


def secret_names(references: Iterable[tuple[str, Reference]], settings: Mapping[str, str]) -> set[str]:
    """Returns the referenced variables that are not settings."""
    return {reference.name for _, reference in references} - set(settings)


def container(
    spec: KubernetesSpec, name: str, arguments: Sequence[str], *, size: PodSize, variables: list[Manifest], **more: Any
) -> Manifest:
    """Returns a container of the image that runs one process."""
    return {
        "name": name,
        "image": resolve_text(spec.image),
        "command": list(_ENTRY_POINT),
        "args": list(arguments),
        "workingDir": "/tmp",  # noqa: S108 - the one folder that is written
        "envFrom": from_settings(),
        "env": variables,
        "resources": {
            "requests": {"cpu": size.cpu, "memory": size.memory},
            "limits": {"memory": size.memory},
        },
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        **more,
    }


def pod(spec: KubernetesSpec, containers: list[Manifest], **more: Any) -> Manifest:
    """Returns a pod spec without access to the Kubernetes API."""
    secrets = [{"name": name} for name in spec.image_pull_secrets]
    return {
        "serviceAccountName": ACCOUNT,
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        **({"imagePullSecrets": secrets} if secrets else {}),
        "containers": containers,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **more,
    }


#: Entry point of drivers and executors in docker/kubernetes.Dockerfile.
_SPARK_ENTRY_POINT = ("/usr/bin/dumb-init", "--", "bash", "/opt/deltaworks/spark_pod.sh")


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
                    "command": list(_SPARK_ENTRY_POINT),
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
