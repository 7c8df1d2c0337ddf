"""A project with the pipeline `shop` whose environment declares an Airflow, and its stream's heartbeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.testing import local_storage
from tests.airflow_server import AirflowServer
from tests.heartbeats import put_heartbeat
from tests.unit.specs.conftest import ENVIRONMENT, write_project

DAG = "shop__stream"
#: The environment's declaration of its Airflow; tests unset the variable that would override it.
DECLARED = "airflow: {{url: {url}, username: ada, password: env:PASSWORD_OF_ADA}}\n"


def declare_airflow(folder: Path, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Writes the project, points the process to it, and returns its lake."""
    environment = ENVIRONMENT.replace("file:///lake", f"file://{folder}/lake") + DECLARED.format(url=airflow.url)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(write_project(folder, environment=environment)))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    monkeypatch.setenv("PASSWORD_OF_ADA", airflow.login[1])
    monkeypatch.delenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", raising=False)
    return open_objects(local_storage(folder / "lake"))


def stop_flag(lake: ObjectStore) -> StopFlag:
    """Returns the stop flag of the stream."""
    return StopFlag(lake, paths.pipeline_control("shop", "stop.json"))


def write_heartbeat(lake: ObjectStore, state: Any, *, at: str = "", run: str = "r") -> None:
    """Writes the heartbeat of the stream with the current or another time."""
    put_heartbeat(lake, paths.pipeline_control("shop"), at=at, run=run, state=state)
