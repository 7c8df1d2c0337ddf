"""Where the shared test vectors are, a lake, a stream, servers of AWS and a small pipeline to read events with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table, local_lake, pipeline_spec
from tests.shared_data import SHARED_DATA
from tests.unit.engine.hold_harness import Harness

if TYPE_CHECKING:
    from tests.unit.alerts.aws_harness import Aws


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
def lake(tmp_path: Path) -> Lake:
    """An empty lake on local disk."""
    return local_lake(tmp_path / "lake")


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    """The object store of that lake."""
    return LocalObjects(tmp_path / "lake")


@pytest.fixture
def stage(tmp_path: Path) -> Harness:
    """A stream of three tables that lands batches without Spark."""
    return Harness.at(tmp_path)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The address of a moto server."""
    from tests.moto_server import running_moto

    with running_moto() as address:
        yield address


@pytest.fixture(scope="session")
def aws_server() -> Iterator[str]:
    """The address of a server with SNS and SQS."""
    from tests.unit.alerts.aws_harness import running_aws

    with running_aws() as address:
        yield address


@pytest.fixture
def aws(aws_server: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """A client of that server."""
    from tests.unit.alerts.aws_harness import Aws

    return Aws.at(aws_server, monkeypatch)


@pytest.fixture
def make_spec() -> Callable[..., PipelineSpec]:
    """Builds a pipeline: `make_spec(tables=[...], event={...}, ...)` over working defaults."""

    events = {"name": "events", "catch_all": True, "columns": [{"name": "device", "path": "device", "type": "string"}]}
    orders = declare_table(
        "orders", "amount decimal(12,2) from params.amount required", "level int from params.level", when="order"
    )
    return functools.partial(pipeline_spec, events, orders)
