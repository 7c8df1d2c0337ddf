"""A console over a small project with two pipelines and a relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from tests.console_harness import ConsoleHarness, console_harness
from tests.dags.airflow_project import REPOSITORY, write_project
from tests.unit.console.actions.test_fields import params_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    return write_project(tmp_path / "project")


@pytest.fixture
def harness(project: Path) -> ConsoleHarness:
    return console_harness(project)


@pytest.fixture
def with_forms(harness: ConsoleHarness) -> ConsoleHarness:
    """A harness whose Airflow has the DAGs of all operations of games and of the relay."""
    for declared in OPERATIONS.values():
        subject = "landing" if declared.scope == "relay" else "games"
        harness.actions.forms[declared.dag_id(subject)] = params_of(declared)
    return harness


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The shipped project."""
    return load_catalog("local", root=REPOSITORY)
