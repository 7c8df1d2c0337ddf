"""Workloads: relays and the dead man's switch as Deployments, collectors as a StatefulSet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltaworks.kubernetes.pods import Manifest, container, from_secret, labels, metadata, pod, secret_names
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import WEBHOOK_VARIABLE
from deltaworks.specs.kubernetes import CollectorPodsSpec, KubernetesSpec
from deltaworks.specs.relay import RelaySpec

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
