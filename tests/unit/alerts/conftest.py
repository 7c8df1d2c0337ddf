"""A test clock, and object stores for the control storage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from tests.unit.alerts.aws_harness import Aws, running_aws

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = START

    def advance(self, seconds: float) -> datetime:
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
    with running_aws() as address:
        yield address


@pytest.fixture
def aws(aws_server: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
    return Aws.at(aws_server, monkeypatch)
