"""Common parts of all pods: image, user, security context and environment variables.

Variables that are not secrets come from one ConfigMap, all others from one Secret. Each container gets only the secrets
that its process refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from deltaworks.specs.base import Reference, resolve_text
from deltaworks.specs.kubernetes import KubernetesSpec, PodSize

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
