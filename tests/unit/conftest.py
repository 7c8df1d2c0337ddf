"""Where the shared test vectors are, and a small pipeline to read events with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.specs.pipeline import PipelineSpec
from tests.shared_data import SHARED_DATA
from tests.unit.recovery.replay_harness import shop


@pytest.fixture(scope="session")
def malformed_json() -> Path:
    """The folder of JSON test vectors; they are not part of the checkout."""
    folder = SHARED_DATA / "malformed_json"
    if not folder.is_dir():
        pytest.skip(f"no JSON test vectors at {folder}; name their folder in DELTAWORKS_SHARED_DATA")
    return folder


@pytest.fixture(scope="session")
def cloudfront_logs() -> Path:
    """The folder of CloudFront's logs; they are not part of the checkout."""
    folder = SHARED_DATA / "cloudfront_logs"
    if not folder.is_dir():
        pytest.skip(f"no CloudFront logs at {folder}; name their folder in DELTAWORKS_SHARED_DATA")
    return folder


@pytest.fixture
def make_spec() -> Callable[..., PipelineSpec]:
    """Builds a pipeline: `make_spec(tables=[...], event={...}, ...)` over working defaults."""

    events = {"name": "events", "catch_all": True, "columns": [{"name": "device", "path": "device", "type": "string"}]}
    orders = {
        "name": "orders",
        "when": {"name": "order"},
        "columns": [
            {"name": "amount", "path": "params.amount", "type": "decimal(12,2)", "required": True},
            {"name": "level", "path": "params.level", "type": "int"},
        ],
    }
    return functools.partial(shop, events, orders)
