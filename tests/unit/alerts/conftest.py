"""A clock of the tests' own, and the object stores of the control area."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from deltaworks.control.objects import LocalObjects
from sandbox.servers.moto_corrections import correct_moto
from tests.unit.alerts.aws_stage import Aws

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = START

    def pass_(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "lake")


@pytest.fixture(scope="session")
def aws_server() -> Iterator[str]:
    correct_moto()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(aws_server: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    return Aws(aws_server)
