"""A clock of the tests' own, and the object stores of the control area."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from sandbox.servers.moto_corrections import correct_moto
from tests.moto_server import running_moto
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
    with running_moto() as address:
        yield address


@pytest.fixture
def aws(aws_server: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    return Aws(aws_server)
