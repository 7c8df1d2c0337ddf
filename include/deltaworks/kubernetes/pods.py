"""What all pods have in common: the image and its user, what they may do, and the variables they are given.

Variables that are no secrets come from one ConfigMap. The rest are keys of one Secret, and each container is given
those that its process refers to and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from deltaworks.specs.base import Reference, resolve_text
from deltaworks.specs.kubernetes import KubernetesSpec, PodSize

Manifest = dict[str, Any]
#: The user of the image.
USER: Final = 50_000
SETTINGS: Final = "deltaworks-settings"
ACCOUNT, DRIVER_ACCOUNT = "deltaworks", "deltaworks-driver"
#: Of nothing but the vault's jobs.
VAULT_ACCOUNT: Final = "deltaworks-vault"
#: The image's own entry point waits for Airflow's database, which these processes have nothing to do with.
_ENTRY_POINT = ("/usr/bin/dumb-init", "--")


def metadata(spec: KubernetesSpec, name: str, component: str, instance: str = "") -> Manifest:
    """Name, namespace and labels of an object."""
    return {"name": name, "namespace": spec.namespace, "labels": labels(component, instance)}


def labels(component: str, instance: str = "") -> dict[str, str]:
    """The labels by which the objects of a component are selected."""
    own = {"app.kubernetes.io/name": "deltaworks", "app.kubernetes.io/component": component}
    return own | ({"app.kubernetes.io/instance": instance} if instance else {})


def pod_security() -> Manifest:
    """What a pod may do: what Kubernetes' own standard `restricted` leaves."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": 0,
        "fsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """What a container may do. Nothing is written but below /tmp and what Spark mounts."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def from_settings() -> list[Manifest]:
    """Every variable that is no secret."""
    return [{"configMapRef": {"name": SETTINGS}}]


def from_secret(spec: KubernetesSpec, names: Iterable[str], *, optional: bool = False) -> list[Manifest]:
    """Variables of the Secret, by their names."""
    more = {"optional": True} if optional else {}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": spec.secret, "key": name, **more}}}
        for name in sorted(names)
    ]


def secret_names(references: Iterable[tuple[str, Reference]], settings: Mapping[str, str]) -> set[str]:
    """Of the variables that references name, those that are not among the settings."""
    return {reference.name for _, reference in references} - set(settings)


def container(
    spec: KubernetesSpec, name: str, arguments: Sequence[str], *, size: PodSize, variables: list[Manifest], **more: Any
) -> Manifest:
    """A container of the image that runs one process."""
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
    """The spec of a pod that asks nothing of the cluster's API."""
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
