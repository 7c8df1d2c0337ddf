"""Fixtures for tests with Airflow, with a separate Airflow home set before Airflow is imported."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dags.airflow_project import AIRFLOW_SETTINGS, HOME, end_interpreter, write_project

# Airflow reads its home folder on first import, which happens while these tests are collected.
_BEFORE = {name: os.environ.get(name) for name in AIRFLOW_SETTINGS}
os.environ.update(AIRFLOW_SETTINGS)


def _restore() -> None:
    for name, value in _BEFORE.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_collection_finish() -> None:
    _restore()


def pytest_sessionfinish() -> None:
    end_interpreter()
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def airflow_settings() -> Iterator[None]:
    """Airflow's settings, reverted after each of these files, since other tests start Airflows of their own."""
    os.environ.update(AIRFLOW_SETTINGS)
    yield
    _restore()


@pytest.fixture(scope="session", autouse=True)
def patient_table_reads() -> Iterator[None]:
    """Pages wait for their child process as long as a busy machine takes to start it."""
    from deltaworks.console.table_reads import TABLE_LIMITS

    before = TABLE_LIMITS.seconds
    object.__setattr__(TABLE_LIMITS, "seconds", 120.0)
    yield
    object.__setattr__(TABLE_LIMITS, "seconds", before)


@pytest.fixture(autouse=True)
def reset_console_cache() -> None:
    """Resets the console before each test: it caches the project of the process, and tests have their own."""
    for name in [name for name in list(sys.modules) if name.endswith("deltaworks_plugin")]:
        for hosted in sys.modules[name].DeltaworksPlugin.fastapi_apps:
            hosted["app"]._application = None


@pytest.fixture(scope="session")
def sample_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(sample_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample project as the configured project."""
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(sample_project))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    return sample_project


@pytest.fixture(scope="module")
def airflow_database(airflow_settings: None) -> None:
    """The metadata database, created once."""
    from airflow.utils.db import initdb

    ready = HOME / "ready"
    if not ready.exists():
        initdb()
        ready.touch()
