"""Environment variables that are not secrets: read from an env file and rendered as ConfigMaps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltaworks.errors import ConfigError
from deltaworks.kubernetes.pods import SETTINGS, Manifest, metadata
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.kubernetes import KubernetesSpec
from deltaworks.specs.weak_secrets import find_secrets

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
