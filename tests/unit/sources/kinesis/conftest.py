"""A Kinesis server for the tests of a file, a client, and a stream for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kinesis_server import WireStream, kinesis_client, running_kinesis
from tests.unit.sources.kinesis.stream_model import ModelStream


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_kinesis() as address:
        yield address


@pytest.fixture
def raw(endpoint: str) -> Any:
    return kinesis_client(endpoint)


@pytest.fixture
def name(raw: Any) -> str:
    return WireStream(raw).name


@pytest.fixture
def stream() -> ModelStream:
    return ModelStream()
