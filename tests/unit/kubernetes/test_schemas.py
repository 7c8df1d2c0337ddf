"""Every rendered object is valid by Kubernetes' published schemas of an old and a new version."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaworks.kubernetes.manifests import manifests, read_variables, to_yaml
from deltaworks.kubernetes.pods import driver_pod, executor_pod
from deltaworks.specs.project import load_catalog
from tests.unit.kubernetes.conftest import Rendered
from tests.unit.kubernetes.schemas import VERSIONS, check, kubernetes_validate

ROOT = Path(__file__).resolve().parents[3]
KINDS = {
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Deployment",
    "StatefulSet",
    "Service",
    "PodDisruptionBudget",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_by_its_schema(render: Callable[..., Rendered], version: str) -> None:
    objects = render().objects

    for item in objects.values():
        check(item, version)
    assert {kind for kind, _ in objects} == KINDS


@pytest.mark.parametrize("version", VERSIONS)
def test_spark_pods_are_valid_by_their_schema(render: Callable[..., Rendered], version: str) -> None:
    spec = render().catalog.environment.kubernetes
    assert spec is not None

    check(driver_pod(spec, ["LINEAGE_KEY"]), version)
    check(executor_pod(spec), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_environment_is_rendered_with_its_example(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_variables(ROOT / "docker" / "kubernetes.env.example")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    objects = manifests(load_catalog(root=ROOT), settings)

    for item in objects:
        check(item, version)
    assert {"relay-landing", "relay-partners", "deadman"} == {
        item["metadata"]["name"] for item in objects if item["kind"] == "Deployment"
    }


def test_printed_manifests_parse_to_the_rendered_ones(render: Callable[..., Rendered]) -> None:
    rendered = list(render().objects.values())

    assert list(yaml.safe_load_all(to_yaml(rendered))) == rendered


Break = Callable[[dict[str, Any]], Any]
#: A field with a wrong name, of a wrong type, with a value there is not, and one that is missing.
BREAKS: dict[str, Break] = {
    "relpicas": lambda item: item["spec"].update(relpicas=2),
    "replicas": lambda item: item["spec"].update(replicas="2"),
    "readOnly": lambda item: _container(item)["volumeMounts"][0].update(readOnly="yes"),
    "livenessProbe": lambda item: _container(item)["livenessProbe"].update(period=5),
    "selector": lambda item: item["spec"].pop("selector"),
}


def _container(item: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = item["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_schema_violation_is_detected(render: Callable[..., Rendered], name: str) -> None:
    item = copy.deepcopy(render().objects["Deployment", "relay-landing"])
    check(item, VERSIONS[-1])

    BREAKS[name](item)

    with pytest.raises(kubernetes_validate.ValidationError):
        check(item, VERSIONS[-1])
