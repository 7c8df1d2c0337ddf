"""A project whose environment has a Kubernetes section, and its rendered manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deltaworks.kubernetes.manifests import manifests
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_files
from tests.unit.specs.conftest import RELAY, write_project

#: Storages as docker-compose.yaml has them, by references alone.
ENVIRONMENT = """\
environment: local
lake:
  root: s3://lake
  endpoint: env:DELTAWORKS_LAKE_ENDPOINT
  access_key: env:DELTAWORKS_LAKE_ACCESS_KEY
  secret_key: env:DELTAWORKS_LAKE_SECRET_KEY
landing:
  root: s3://landing
  endpoint: env:DELTAWORKS_AWS_ENDPOINT
  access_key: env:DELTAWORKS_AWS_ACCESS_KEY
  secret_key: env:DELTAWORKS_AWS_SECRET_KEY
messaging:
  endpoint: env:DELTAWORKS_AWS_ENDPOINT
  access_key: env:DELTAWORKS_AWS_ACCESS_KEY
  secret_key: env:DELTAWORKS_AWS_SECRET_KEY
lineage:
  transport: {type: http, url: "https://lineage", auth: {type: api_key, apiKey: env:LINEAGE_KEY}}
alerts:
  channels: [{kind: webhook, name: chat, url: env:CHAT_URL, token: env:CHAT_TOKEN}]
kubernetes:
  image: registry.example.com/deltaworks:1
  namespace: lakehouse
  service_account_annotations: {role: deltaworks}
  image_pull_secrets: [registry]
  collector: {name: edge}
"""
PIPELINE = """\
pipeline: shop
description: orders
owner: tests
source: {kind: kinesis, stream: orders}
event:
  name: {path: name}
  time: {path: time}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: amount, path: amount, type: "decimal(12,2)"}
"""
COLLECTOR = """\
collector: edge
sources:
  shop:
    pipeline: shop
    keys: [{sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]
    sink: {kind: kinesis}
"""
SETTINGS = {
    "DELTAWORKS_ENVIRONMENT": "local",
    "DELTAWORKS_LAKE_ENDPOINT": "http://lake:9000",
    "DELTAWORKS_AWS_ENDPOINT": "http://aws:5000",
    "QUEUE": "http://aws:5000/queue",
}


def write_collector(root: Path) -> None:
    """Declare the collector that the environment runs."""
    write_files(root, {"include/collectors/edge.yaml": COLLECTOR})


@dataclass(frozen=True)
class Rendered:
    """The objects of a project, by kind and name."""

    catalog: Catalog
    settings: Mapping[str, str]

    @property
    def objects(self) -> dict[tuple[str, str], dict[str, Any]]:
        rendered = manifests(self.catalog, self.settings)
        by_name = {(item["kind"], item["metadata"]["name"]): item for item in rendered}
        assert len(by_name) == len(rendered), "two objects have one name"
        return by_name

    def pod(self, deployment: str) -> dict[str, Any]:
        """The pod of a Deployment or a StatefulSet."""
        objects = self.objects
        owner = objects.get(("Deployment", deployment)) or objects["StatefulSet", deployment]
        spec: dict[str, Any] = owner["spec"]["template"]["spec"]
        return spec

    def container(self, deployment: str) -> dict[str, Any]:
        """The one container of a Deployment's pod."""
        (container,) = self.pod(deployment)["containers"]
        return dict(container)

    def secrets(self, deployment: str) -> set[str]:
        """The variables that come from the Secret."""
        return {variable["name"] for variable in self.container(deployment)["env"]}


@pytest.fixture
def render(tmp_path: Path) -> Callable[..., Rendered]:
    """Renders a project: `render(environment=…, pipeline=…)`."""

    def rendered(*, environment: str = ENVIRONMENT, pipeline: str = PIPELINE, relay: str = "") -> Rendered:
        declared = relay or RELAY.replace("http://localhost/queue", "env:QUEUE")
        root = write_project(tmp_path, environment=environment, pipeline=pipeline, relay=declared)
        write_collector(root)
        return Rendered(load_catalog(root=root), SETTINGS)

    return rendered
