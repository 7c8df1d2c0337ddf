"""Builds all Kubernetes manifests of an environment, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deltaworks.errors import ConfigError
from deltaworks.kubernetes.accounts import accounts
from deltaworks.kubernetes.pods import Manifest
from deltaworks.kubernetes.settings import settings_maps
from deltaworks.kubernetes.vault_jobs import vault_jobs
from deltaworks.kubernetes.workloads import workloads
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.kubernetes import KubernetesSpec
from deltaworks.specs.yaml_reader import dump_yaml


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
