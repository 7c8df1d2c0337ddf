"""Spark starts separate Python processes for a streaming source, which find library and keys in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import PIPELINE, ProjectOf
from tests.unit.sources.conftest import KEYS, aws_endpoint, landing

__all__ = ["aws_endpoint", "landing"]
INCLUDE = str(Path(__file__).resolve().parents[3] / "include")
# At import, so before any session starts its JVM, whose environment they take.
if INCLUDE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [INCLUDE, os.environ.get("PYTHONPATH")]))
os.environ.update(KEYS)


@pytest.fixture
def project_of(make_project: Callable[..., Project]) -> ProjectOf:
    """Makes a project whose pipeline reads this source."""

    def make(source: dict[str, Any], declared: str = PIPELINE) -> Project:
        return make_project({"shop": (declared.format(source=json.dumps(source)), {})})

    return make
