"""A traffic server, and a remediation that changes its shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.remediation.remediation_harness import RemediationHarness
from tests.unit.remediation.traffic_server import Director, running_director


@pytest.fixture
def director() -> Iterator[Director]:
    with running_director(a=0.5, b=0.5) as running:
        yield running


@pytest.fixture
def harness(tmp_path: Path, director: Director) -> RemediationHarness:
    return RemediationHarness(tmp_path, director)
