"""Everything of an environment that is applied to a cluster, in the order in which it is."""

from __future__ import annotations

import io
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


def require_kubernetes(catalog: Catalog) -> KubernetesSpec:
    """What the environment says of its cluster.

    Raises:
        ConfigError: KUBERNETES_UNDECLARED.
    """
    spec = catalog.environment.kubernetes
    if spec is None:
        name = catalog.environment.environment
        raise ConfigError(
            "KUBERNETES_UNDECLARED",
            f"include/environments/{name}.yaml declares no `kubernetes`, so it is not known what would run where.",
            hint="Write `kubernetes: {image: registry.example.com/deltaworks:0.1.0}` there, or name another one.",
        )
    return spec


def manifests(catalog: Catalog, settings: Mapping[str, str]) -> list[Manifest]:
    """The objects of an environment. Pure; no value of a secret is among them.

    Args:
        settings: variables that are no secrets. What declarations refer to and is not here is a key of the Secret.

    Raises:
        ConfigError: KUBERNETES_UNDECLARED.
    """
    spec = require_kubernetes(catalog)
    vault = list(vault_jobs(catalog, spec, settings))
    made = [*accounts(spec, vault=bool(vault)), *settings_maps(spec, settings), *workloads(catalog, spec, settings)]
    return [*made, *vault]


def secret_keys(catalog: Catalog, settings: Mapping[str, str]) -> list[str]:
    """The keys that the Secret needs: whatever declarations refer to and no setting says."""
    declared = [
        catalog.environment,
        *catalog.relays.values(),
        *catalog.pipelines.values(),
        *catalog.collectors.values(),
    ]
    return sorted({reference.name for _, reference in find_references(declared)} - set(settings))


def to_yaml(objects: Iterable[Manifest]) -> str:
    """The objects as a stream of YAML documents."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.representer.ignore_aliases = lambda _: True
    text = io.StringIO()
    for item in objects:
        text.write("---\n")
        yaml.dump(item, text)
    return text.getvalue()
