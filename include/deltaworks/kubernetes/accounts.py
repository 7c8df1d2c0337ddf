"""Service accounts and their roles: Airflow tasks start drivers, drivers start executors; others have no API access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaworks.kubernetes.pods import ACCOUNT, DRIVER_ACCOUNT, VAULT_ACCOUNT, Manifest, metadata
from deltaworks.specs.kubernetes import KubernetesSpec

_SUBMITTER = "deltaworks-submitter"
#: A driver lists and deletes its executors and their objects by label.
_DRIVER_VERBS = ("create", "get", "list", "watch", "update", "patch", "delete", "deletecollection")
#: spark-submit creates a pod with a service, ConfigMaps and a network policy that restricts access to its executors,
#: and makes the pod their owner. The task then watches and deletes the pod.
_SUBMITTER_VERBS = ("create", "get", "list", "watch", "update", "patch", "delete")


def accounts(spec: KubernetesSpec, *, vault: bool = False) -> Iterator[Manifest]:
    """Yields the service accounts with their roles, which are limited to the namespace.

    Args:
        vault: include the account of vault jobs, which has a separate role.
    """
    roles = dict.fromkeys((ACCOUNT, DRIVER_ACCOUNT), spec.service_account_annotations)
    roles |= {VAULT_ACCOUNT: spec.vault_account_annotations} if vault else {}
    for name, account_annotations in roles.items():
        yield {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(spec, name, "accounts")
            | ({"annotations": dict(account_annotations)} if account_annotations else {}),
            "automountServiceAccountToken": name == DRIVER_ACCOUNT,
        }
    yield _role(spec, DRIVER_ACCOUNT, {"": ["configmaps", "persistentvolumeclaims", "pods", "services"]}, _DRIVER_VERBS)
    yield _binding(spec, DRIVER_ACCOUNT, [DRIVER_ACCOUNT])
    submitter_resources = {"": ["configmaps", "pods", "services"], "networking.k8s.io": ["networkpolicies"]}
    yield _role(spec, _SUBMITTER, submitter_resources, _SUBMITTER_VERBS)
    yield _binding(spec, _SUBMITTER, spec.airflow_service_accounts)


def _role(spec: KubernetesSpec, name: str, resources: Mapping[str, Sequence[str]], verbs: Sequence[str]) -> Manifest:
    """Returns a role that allows verbs on resources by API group."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(spec, name, "accounts"),
        "rules": [
            {"apiGroups": [group], "resources": list(names), "verbs": list(verbs)} for group, names in resources.items()
        ],
    }


def _binding(spec: KubernetesSpec, role: str, subjects: Sequence[str]) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(spec, role, "accounts"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": spec.namespace} for name in subjects],
    }
