"""Builds all Kubernetes manifests of an environment, in the order in which they are applied: accounts and settings, and
the workloads, which are relays and the dead man's switch as Deployments and collectors as a StatefulSet.

Airflow tasks start drivers and drivers start executors with their service accounts; others have no API access. The
vault's CronJobs have a separate account, the only one with access to the vault: Airflow tasks and drivers share theirs,
which would grant access to the code of every pipeline. Variables of the env file that are not secrets become
ConfigMaps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deltaworks.errors import ConfigError
from deltaworks.kubernetes.pods import (
    ACCOUNT,
    DRIVER_ACCOUNT,
    SETTINGS,
    VAULT_ACCOUNT,
    Manifest,
    container,
    from_secret,
    labels,
    metadata,
    pod,
    secret_names,
)
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import WEBHOOK_VARIABLE
from deltaworks.specs.environment_sections import CollectorPodsSpec, KubernetesSpec
from deltaworks.specs.privacy import VAULT_SCHEDULES
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.weak_secrets import find_secrets
from deltaworks.specs.yaml_reader import dump_yaml

_HEARTBEAT_FILE = "/tmp/beat"  # noqa: S108
#: Seconds after which a silent relay is restarted. A relay waits five minutes for its storage before it exits.
_RELAY_SILENT_SECONDS = 600
_DEADMAN_EVERY_SECONDS, _DEADMAN_SILENT_SECONDS = 30, 120
_COLLECTOR_PORT, _METRICS_PORT = 8090, 8091
_SPOOL = "/var/spool/deltaworks"
#: Ten seconds for load balancers to drain, and twenty to deliver.
_COLLECTOR_GRACE_SECONDS = 60


def workloads(catalog: Catalog, spec: KubernetesSpec, settings: Mapping[str, str]) -> Iterator[Manifest]:
    """Yields all workloads with their Services."""
    for relay in catalog.relays.values():
        yield _relay(catalog, spec, relay, settings)
    yield _deadman(catalog, spec, settings)
    if spec.collector is not None:
        yield from _collector(catalog, spec, spec.collector, settings)


def _relay(catalog: Catalog, spec: KubernetesSpec, relay: RelaySpec, settings: Mapping[str, str]) -> Manifest:
    """Returns a Deployment with a single pod, since a second pod would wait for the lease and fail."""
    environment = catalog.environment
    refers_to = [environment.lake, environment.landing, environment.messaging, relay]
    names = secret_names(find_references(refers_to), settings)
    probe = _heartbeat_probe(_RELAY_SILENT_SECONDS)
    main = container(
        spec,
        "relay",
        [
            *("python", "-m", "deltaworks.sources.objects.relay", "--relay", relay.relay),
            *("--heartbeat-file", _HEARTBEAT_FILE, "--wait-while-stopped"),
        ],
        size=spec.relay,
        variables=from_secret(spec, names),
        startupProbe={**probe, "periodSeconds": 5, "failureThreshold": 120},
        livenessProbe={**probe, "periodSeconds": 30},
    )
    # On SIGTERM a relay returns unprocessed messages to the queue.
    details = pod(spec, [main], terminationGracePeriodSeconds=60)
    name = f"relay-{relay.relay.replace('_', '-')}"
    return _deployment(spec, name, "relay", details, settings, instance=relay.relay, strategy={"type": "Recreate"})


def _deadman(catalog: Catalog, spec: KubernetesSpec, settings: Mapping[str, str]) -> Manifest:
    environment = catalog.environment
    refers_to = [environment.lake, environment.messaging, environment.alerts]
    names = secret_names(find_references(refers_to), settings) - {WEBHOOK_VARIABLE}
    webhook = set() if WEBHOOK_VARIABLE in settings else {WEBHOOK_VARIABLE}
    main = container(
        spec,
        "deadman",
        [
            *("python", "-m", "deltaworks.alerts.deadman", "--every", str(_DEADMAN_EVERY_SECONDS)),
            *("--heartbeat-file", _HEARTBEAT_FILE),
        ],
        size=spec.deadman,
        variables=[*from_secret(spec, names), *from_secret(spec, webhook, optional=True)],
        startupProbe={**_heartbeat_probe(_DEADMAN_SILENT_SECONDS), "periodSeconds": 5, "failureThreshold": 60},
        livenessProbe={**_heartbeat_probe(_DEADMAN_SILENT_SECONDS), "periodSeconds": 30},
    )
    # A second pod would be safe but useless, since each notification is claimed once. A replacement takes only seconds.
    return _deployment(spec, "deadman", "deadman", pod(spec, [main]), settings, strategy={"type": "Recreate"})


def _collector(
    catalog: Catalog, spec: KubernetesSpec, declared: CollectorPodsSpec, settings: Mapping[str, str]
) -> Iterator[Manifest]:
    """Yields the StatefulSet, its Services and, with several pods, a PodDisruptionBudget.

    Acknowledged events are on the pod's volume, which is not deleted with the pod.
    """
    collector = catalog.collector(declared.name)
    environment = catalog.environment
    refers_to = [environment.lake, environment.landing, environment.messaging, environment.privacy, collector]
    main = container(
        spec,
        "collector",
        [
            *("python", "-m", "deltaworks.cli", "collect", declared.name, "--spool", _SPOOL),
            *("--host", "0.0.0.0", "--port", str(_COLLECTOR_PORT), "--metrics-port", str(_METRICS_PORT)),
        ],
        size=declared,
        variables=from_secret(spec, secret_names(find_references(refers_to), settings)),
        ports=[
            {"name": "http", "containerPort": _COLLECTOR_PORT},
            {"name": "metrics", "containerPort": _METRICS_PORT},
        ],
        # After a crash a collector recovers its spool before it accepts requests.
        startupProbe={**_http_probe("/health"), "periodSeconds": 2, "failureThreshold": 150},
        readinessProbe={**_http_probe("/ready"), "periodSeconds": 5},
        livenessProbe={**_http_probe("/health"), "periodSeconds": 20, "failureThreshold": 3},
    )
    main["volumeMounts"] = [*main["volumeMounts"], {"name": "spool", "mountPath": _SPOOL}]
    topology_spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels("collector")},
    }
    details = pod(
        spec,
        [main],
        topologySpreadConstraints=[topology_spread],
        terminationGracePeriodSeconds=_COLLECTOR_GRACE_SECONDS,
    )
    yield _stateful_set(spec, declared, details, settings)
    yield _service(spec, "collector", {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]})
    # A headless Service, which a StatefulSet requires.
    yield _service(spec, "collector-pods", {"clusterIP": "None", "ports": [{"name": "metrics", "port": _METRICS_PORT}]})
    if declared.replicas > 1:
        yield {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(spec, "collector", "collector"),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels("collector")}},
        }


def _stateful_set(
    spec: KubernetesSpec, declared: CollectorPodsSpec, details: Manifest, settings: Mapping[str, str]
) -> Manifest:
    selector_labels = labels("collector")
    storage = {"storageClassName": declared.storage_class} if declared.storage_class else {}
    claim = {
        "metadata": {"name": "spool", "labels": selector_labels},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": declared.spool_size}},
            **storage,
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(spec, "collector", "collector"),
        "spec": {
            "serviceName": "collector-pods",
            "replicas": declared.replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector_labels},
            "template": {
                "metadata": {"labels": selector_labels, "annotations": {"deltaworks/settings": _digest(settings)}},
                "spec": details,
            },
            "volumeClaimTemplates": [claim],
            # Volumes may contain undelivered events, so they are only deleted manually.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        },
    }


def _service(spec: KubernetesSpec, name: str, fields: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec, name, "collector"),
        "spec": {"selector": labels("collector"), **fields},
    }


def _http_probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5}


def _deployment(
    spec: KubernetesSpec,
    name: str,
    component: str,
    details: Manifest,
    settings: Mapping[str, str],
    *,
    instance: str = "",
    replicas: int = 1,
    strategy: Manifest,
) -> Manifest:
    selector_labels = labels(component, instance)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(spec, name, component, instance),
        "spec": {
            "replicas": replicas,
            "strategy": strategy,
            "selector": {"matchLabels": selector_labels},
            "template": {
                # A digest of the settings, so that changed settings replace the pods. Settings are read at startup.
                "metadata": {"labels": selector_labels, "annotations": {"deltaworks/settings": _digest(settings)}},
                "spec": details,
            },
        },
    }


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:16]


def _heartbeat_probe(seconds: int) -> dict[str, Any]:
    """Returns a probe that fails if the heartbeat file is older than this."""
    test = f'test "$(( $(date +%s) - $(stat -c %Y {_HEARTBEAT_FILE}) ))" -lt {seconds}'
    return {"exec": {"command": ["sh", "-c", test]}, "timeoutSeconds": 5}


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


def vault_jobs(catalog: Catalog, spec: KubernetesSpec, settings: Mapping[str, str]) -> Iterator[Manifest]:
    """Yields a CronJob per namespace and operation. Yields none if the environment declares no vault."""
    environment = catalog.environment
    if environment.privacy is None:
        return
    refers_to = [environment.lake, environment.landing, environment.privacy]
    variables = from_secret(spec, secret_names(find_references(refers_to), settings))
    for namespace in catalog.namespaces:
        for operation, schedule in VAULT_SCHEDULES.items():
            command = ["python", "-m", "deltaworks.operations", operation, "--namespace", namespace]
            arguments = [*command, '--options={"dry_run":false}']
            main = container(spec, "vault", arguments, size=spec.vault, variables=variables)
            details = pod(spec, [main], restartPolicy="Never") | {"serviceAccountName": VAULT_ACCOUNT}
            name = f"vault-{operation.removesuffix('_vault')}-{namespace.replace('_', '-')}"
            yield {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": metadata(spec, name, "vault", namespace),
                "spec": {
                    "schedule": schedule.cron,
                    "timeZone": "Etc/UTC",
                    # Concurrent runs would wait for the same lock. The next run processes everything that is pending.
                    "concurrencyPolicy": "Forbid",
                    "jobTemplate": {
                        "spec": {
                            "backoffLimit": 1,
                            "activeDeadlineSeconds": schedule.hours * 3600,
                            "template": {"metadata": {"labels": labels("vault", namespace)}, "spec": details},
                        }
                    },
                },
            }


AIRFLOW_SETTINGS_MAP: Final = "deltaworks-airflow"
#: The same values as in docker-compose.yaml, which explains them. Settings of Airflow's Helm chart are omitted.
AIRFLOW_SETTINGS: Final[Mapping[str, str]] = {
    "AIRFLOW__CORE__EXECUTOR": "deltaworks.airflow.executor.LocalExecutor",
    "AIRFLOW__CORE__PARALLELISM": "32",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
    "AIRFLOW__API__FALLBACK_PAGE_LIMIT": "100",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
    "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "true",
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "60",
    "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": "86400",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "90",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "10",
}
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SECRET_NAME = re.compile(
    r"SECRET|PASSWORD|PASSPHRASE|TOKEN|ACCESS_?KEY|FERNET|API_?KEY|WEBHOOK|SQL_ALCHEMY_CONN|AIRFLOW_CONN_", re.I
)


def read_variables(path: Path) -> dict[str, str]:
    """Reads a file of `NAME=value` lines in Docker's format, without unquoting.

    Raises:
        ConfigError: KUBERNETES_SETTINGS_INVALID with file and line.
    """
    variables: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _invalid(str(path), f"cannot be read: {error.strerror}", "Pass a file such as docker/aws.env.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not _VARIABLE.match(name):
            raise _invalid(
                f"{path}:{number}",
                "is not of the form NAME=value",
                ("Write one variable per line; comments start with #."),
            )
        variables[name] = value
    return variables


def reject_secrets(variables: Mapping[str, str], path: Path, catalog: Catalog) -> None:
    """Rejects settings that contain a secret, which is recognized by its name or by its use in a spec.

    Raises:
        ConfigError: KUBERNETES_SETTINGS_INVALID. The message contains no values.
    """
    declared = [catalog.environment, *catalog.relays.values(), *catalog.pipelines.values()]
    secrets = {reference.name for spec in declared for _, reference in find_secrets(spec)}
    secret_variables = sorted(name for name in variables if name in secrets or _SECRET_NAME.search(name))
    if secret_variables:
        raise _invalid(
            str(path),
            f"contains {', '.join(secret_variables)}: secrets must not be in a ConfigMap",
            "Move them to the Secret: kubectl create secret generic … --from-env-file=….",
        )


def settings_maps(spec: KubernetesSpec, variables: Mapping[str, str]) -> list[Manifest]:
    """Returns the ConfigMaps: one for all processes, and one for Airflow."""
    return [
        _config_map(spec, SETTINGS, variables),
        _config_map(spec, AIRFLOW_SETTINGS_MAP, {**AIRFLOW_SETTINGS, "AIRFLOW_CONN_SPARK_DEFAULT": connection(spec)}),
    ]


def connection(spec: KubernetesSpec) -> str:
    """Returns Airflow's connection to this cluster as Spark master, from within the cluster."""
    return json.dumps(
        {
            "conn_type": "spark",
            "host": "k8s://https://kubernetes.default.svc",
            "port": 443,
            "extra": {"deploy-mode": "cluster", "namespace": spec.namespace},
        }
    )


def _config_map(spec: KubernetesSpec, name: str, data: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, name, "settings"),
        "data": dict(sorted(data.items())),
    }


def _invalid(location: str, problem: str, hint: str) -> ConfigError:
    return ConfigError("KUBERNETES_SETTINGS_INVALID", f"{location} {problem}.", hint=hint)


def require_kubernetes(catalog: Catalog) -> KubernetesSpec:
    """Returns the environment's Kubernetes settings.

    Raises:
        ConfigError: KUBERNETES_UNDECLARED.
    """
    spec = catalog.environment.kubernetes
    if spec is None:
        name = catalog.environment.environment
        raise ConfigError(
            "KUBERNETES_UNDECLARED", f"include/environments/{name}.yaml declares no `kubernetes` section."
        )
    return spec


def manifests(catalog: Catalog, settings: Mapping[str, str]) -> list[Manifest]:
    """Returns all objects of an environment. Pure; they contain no secret values.

    Args:
        settings: variables that are not secrets. All other referenced variables are keys of the Secret.

    Raises:
        ConfigError: KUBERNETES_UNDECLARED.
    """
    spec = require_kubernetes(catalog)
    vault = list(vault_jobs(catalog, spec, settings))
    items = [*accounts(spec, vault=bool(vault)), *settings_maps(spec, settings), *workloads(catalog, spec, settings)]
    return [*items, *vault]


def secret_keys(catalog: Catalog, settings: Mapping[str, str]) -> list[str]:
    """Returns the required keys of the Secret: all referenced variables that are not settings."""
    declared = [
        catalog.environment,
        *catalog.relays.values(),
        *catalog.pipelines.values(),
        *catalog.collectors.values(),
    ]
    return sorted({reference.name for _, reference in find_references(declared)} - set(settings))


def to_yaml(objects: Iterable[Manifest]) -> str:
    """Returns the objects as a stream of YAML documents."""
    return "".join(f"---\n{dump_yaml(item, width=4096)}" for item in objects)
