"""A console over a small project with two pipelines and a relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console_harness import ConsoleHarness, console_harness
from tests.dags.airflow_project import write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    return write_project(tmp_path / "project")


@pytest.fixture
def harness(project: Path) -> ConsoleHarness:
    return console_harness(project)
