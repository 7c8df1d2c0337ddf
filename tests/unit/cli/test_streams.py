"""`deltaworks start`: a stream that was stopped, or waits after failures, may run again."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pytest
from typer.testing import CliRunner

from deltaworks.airflow.names import stream_dag_id
from deltaworks.cli import app, streams
from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from tests.unit.rework.replay_stage import shop


class Airflow:
    """An API that remembers which DAGs were unpaused."""

    def __init__(self) -> None:
        self.unpaused: list[str] = []

    def __enter__(self) -> Airflow:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        return

    def unpause(self, dag_id: str) -> None:
        self.unpaused.append(dag_id)


def test_start_withdraws_the_stop_and_calls_off_the_wait_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = {"name": "events", "catch_all": True, "columns": [{"name": "device", "path": "device", "type": "string"}]}
    spec = shop(events)
    lake, landing = (StorageSpec(root=f"file://{tmp_path}/{folder}") for folder in ("lake", "landing"))
    environment = EnvironmentSpec(environment="tests", lake=lake, landing=landing, messaging=AwsSpec())
    airflow = Airflow()
    catalog = Catalog(environment=environment, relays={}, pipelines={spec.pipeline: spec}, root=tmp_path)
    monkeypatch.setattr(streams, "catalog", lambda: catalog)
    monkeypatch.setattr(streams, "airflow_from_environment", lambda: airflow)
    objects = open_objects(environment.lake)
    stop = StopFlag(objects, paths.pipeline_control(spec.pipeline, "stop.json"))
    stop.set(by="tests", reason="to see it start")
    backoff = RestartBackoff(objects, paths.pipeline_control(spec.pipeline, "failures.json"))
    backoff.failed(retryable=False)
    assert backoff.left_seconds() > 200

    result = CliRunner().invoke(app, ["start", spec.pipeline])

    assert result.exit_code == 0, result.output
    assert stop.read() is None
    assert backoff.left_seconds() == 0.0
    assert airflow.unpaused == [stream_dag_id(spec.pipeline)]
