"""A small project in a temporary folder, which each test changes in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks import testing

ENVIRONMENT = """\
environment: local
lake: {root: "file:///lake"}
landing: {root: "file:///landing"}
messaging: {}
"""
RELAY = """\
relay: landing
queue_url: http://localhost/queue
buckets: [landing]
"""
PIPELINE = """\
pipeline: shop
description: orders
owner: tests
source:
  kind: s3_sqs
  relay: landing
  bucket: landing
  max_bytes_per_batch: 64MiB
event:
  name: {path: name}
  time: {path: time}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: amount, path: amount, type: "decimal(12,2)"}
stream:
  trigger_seconds: 60
"""


def write_project(root: Path, *, pipeline: str = PIPELINE, environment: str = ENVIRONMENT, relay: str = RELAY) -> Path:
    """Write a project with the pipeline `shop`, and return its root."""
    files = {"relays/landing.yaml": relay, "pipelines/shop/pipeline.yaml": pipeline}
    return testing.write_project(root, environment=environment, relays=[], files=files)


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Path]:
    """Writes a project and returns its root: `make_project(pipeline=..., environment=..., relay=...)`."""

    def make(*, pipeline: str = PIPELINE, environment: str = ENVIRONMENT, relay: str = RELAY) -> Path:
        return write_project(tmp_path, pipeline=pipeline, environment=environment, relay=relay)

    return make


@pytest.fixture
def pipeline_text() -> str:
    """The small pipeline's declaration."""
    return PIPELINE


@pytest.fixture
def environment_text() -> str:
    """The small project's environment."""
    return ENVIRONMENT
