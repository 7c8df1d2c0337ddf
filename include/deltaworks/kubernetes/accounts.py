"""Who asks the cluster's API for what: tasks of Airflow start drivers, drivers start executors, nobody else asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaworks.kubernetes.pods import ACCOUNT, DRIVER_ACCOUNT, VAULT_ACCOUNT, Manifest, metadata
from deltaworks.specs.kubernetes import KubernetesSpec

_SUBMITTER = "deltaworks-submitter"
#: A driver finds its executors, and what it made for them, by their labels, and removes them so at its end.
_DRIVER_VERBS = ("create", "get", "list", "watch", "update", "patch", "delete", "deletecollection")
#: spark-submit makes a pod with a service, maps of settings and a policy that lets only the driver reach its executors;
#: their owner the pod then becomes. The task follows and ends the pod.
_SUBMITTER_VERBS = ("create", "get", "list", "watch", "update", "patch", "delete")


def accounts(spec: KubernetesSpec, *, vault: bool = False) -> Iterator[Manifest]:
    """The accounts of pods and what they may do, within the namespace alone.

    Args:
        vault: with the account of the vault's jobs, whose role is another than that of all others.
    """
    roles = dict.fromkeys((ACCOUNT, DRIVER_ACCOUNT), spec.service_account_annotations)
    for name, notes in (roles | ({VAULT_ACCOUNT: spec.vault_account_annotations} if vault else {})).items():
        yield {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(spec, name, "accounts") | ({"annotations": dict(notes)} if notes else {}),
            "automountServiceAccountToken": name == DRIVER_ACCOUNT,
        }
    yield _role(spec, DRIVER_ACCOUNT, {"": ["configmaps", "persistentvolumeclaims", "pods", "services"]}, _DRIVER_VERBS)
    yield _binding(spec, DRIVER_ACCOUNT, [DRIVER_ACCOUNT])
    submitted = {"": ["configmaps", "pods", "services"], "networking.k8s.io": ["networkpolicies"]}
    yield _role(spec, _SUBMITTER, submitted, _SUBMITTER_VERBS)
    yield _binding(spec, _SUBMITTER, spec.airflow_service_accounts)


def _role(spec: KubernetesSpec, name: str, resources: Mapping[str, Sequence[str]], verbs: Sequence[str]) -> Manifest:
    """A role for resources by their group."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(spec, name, "accounts"),
        "rules": [
            {"apiGroups": [group], "resources": list(of_group), "verbs": list(verbs)}
            for group, of_group in resources.items()
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
