"""The `control` operation does the same as the commands and records the person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import PERSON_VARIABLE, RUN_VARIABLE
from deltaworks.errors import ConfigError, TransientError
from deltaworks.operations import continuous_jobs
from deltaworks.operations.base import Report
from deltaworks.operations.control import ControlResult
from deltaworks.operations.job import run_operation
from deltaworks.operations.registry import get_operation
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.airflow_server import AirflowServer, RunScript, airflow_server
from tests.declared_airflow import DAG, declare_airflow, stop_flag, write_heartbeat

Press = Callable[..., Report]


@pytest.fixture
def airflow() -> Iterator[AirflowServer]:
    with airflow_server(DAG, "landing__relay") as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv(RUN_VARIABLE, "shop__control/manual__1/control/1")
    monkeypatch.setenv(PERSON_VARIABLE, "grace")
    return declare_airflow(tmp_path, airflow, monkeypatch)


@pytest.fixture
def run_control(lake: ObjectStore) -> Press:
    def call(verb: str, *, subject: str = "shop", **values: Any) -> Report:
        name = "control_relay" if subject == "landing" else "control"
        return run_operation(get_operation(name), load_catalog("local"), subject, {"verb": verb, **values})

    return call


@pytest.fixture
def flag(lake: ObjectStore) -> StopFlag:
    return stop_flag(lake)


def test_a_stop_records_the_person_and_the_reason(run_control: Press, flag: StopFlag, airflow: AirflowServer) -> None:
    report = run_control("stop", reason="a new key")

    request = present(flag.read())
    assert (request.by, request.reason) == ("grace", "a new key")
    assert airflow.paused[DAG]
    assert report.results == [ControlResult(verb="stop", target="shop", by="grace", reason="a new key")]


def test_a_start_clears_the_stop(run_control: Press, flag: StopFlag, airflow: AirflowServer) -> None:
    run_control("stop")

    run_control("start")

    assert flag.read() is None
    assert not airflow.paused[DAG]


def test_a_restart_leaves_the_flag_while_the_stream_has_not_ended(
    run_control: Press, flag: StopFlag, lake: ObjectStore
) -> None:
    write_heartbeat(lake, "running")

    with pytest.raises(TransientError, match="STREAM_STILL_RUNNING"):
        run_control("restart", wait_seconds=0)
    assert flag.read() is not None, "the try that follows waits on"

    write_heartbeat(lake, "ended")
    run_control("restart", wait_seconds=0)
    assert flag.read() is None


LONG_AGO = "2026-01-01T00:00:00+00:00"


def test_a_restart_of_a_stalled_stream_clears_its_task(
    run_control: Press, flag: StopFlag, lake: ObjectStore, airflow: AirflowServer
) -> None:
    write_heartbeat(lake, "running", at=LONG_AGO)
    RestartBackoff(lake, paths.pipeline_control("shop", "failures.json")).record_failure()
    airflow.runs[DAG, "r1"] = ({}, 0)
    airflow.scripts[DAG] = RunScript(steps=[("running", {"ingest": "running"})])

    run_control("restart", wait_seconds=0)

    cleared = [(path, body) for method, path, body in airflow.changes() if method == "POST"]
    assert [(path, body["dag_run_id"], body["task_ids"], body["dry_run"]) for path, body in cleared] == [
        (f"/api/v2/dags/{DAG}/clearTaskInstances", "r1", ["ingest"], False)
    ]
    assert flag.read() is None
    assert lake.get(paths.pipeline_control("shop", "failures.json")) is None, "the next try waits for nothing"


@pytest.mark.parametrize("task", ["queued", "running"])
def test_a_starting_successor_of_a_stalled_stream_is_not_killed(
    run_control: Press, lake: ObjectStore, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    write_heartbeat(lake, "running", at="2025-12-31T23:00:00+00:00")
    airflow.runs[DAG, "r1"] = ({}, 0)
    airflow.scripts[DAG] = RunScript(steps=[("running", {"ingest": task})])
    # A minute after the task has begun, as that Airflow has it.
    monkeypatch.setattr(continuous_jobs, "utc_now", lambda: datetime(2026, 1, 1, 0, 2, 30, tzinfo=UTC))

    run_control("restart", wait_seconds=0)

    assert [method for method, _, _ in airflow.changes()] == ["PATCH"], "its DAG is unpaused, and nothing else"


def test_a_stream_that_stalls_soon_after_its_first_heartbeat_is_cleared(
    run_control: Press, lake: ObjectStore, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_heartbeat(lake, "running", at="2025-12-31T23:00:00+00:00", run=f"{DAG}/r1/ingest/1")
    airflow.runs[DAG, "r1"] = ({}, 0)
    airflow.scripts[DAG] = RunScript(steps=[("running", {"ingest": "running"})])
    monkeypatch.setattr(continuous_jobs, "utc_now", lambda: datetime(2026, 1, 1, 0, 2, 30, tzinfo=UTC))

    run_control("restart", wait_seconds=0)

    assert [path for method, path, _ in airflow.changes() if method == "POST"] == [
        f"/api/v2/dags/{DAG}/clearTaskInstances"
    ]


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_stream_in_retry_delay_is_started_immediately(
    run_control: Press, lake: ObjectStore, airflow: AirflowServer, verb: str
) -> None:
    write_heartbeat(lake, "failed")
    airflow.runs[DAG, "r1"] = ({}, 0)
    airflow.scripts[DAG] = RunScript(steps=[("running", {"ingest": "up_for_retry"})])

    run_control(verb, wait_seconds=0)

    cleared = [(path, body["task_ids"]) for method, path, body in airflow.changes() if method == "POST"]
    assert cleared == [(f"/api/v2/dags/{DAG}/clearTaskInstances", ["ingest"])]


def test_a_stalled_stream_is_not_cleared_while_airflow_is_unreachable(
    run_control: Press, flag: StopFlag, lake: ObjectStore, airflow: AirflowServer
) -> None:
    write_heartbeat(lake, "running", at=LONG_AGO)
    airflow.forbidden = (f"GET /dags/{DAG}",)

    with pytest.raises(ConfigError, match="AIRFLOW_FORBIDDEN"):
        run_control("restart", wait_seconds=0)
    assert flag.read() is None


def test_a_relay_is_stopped_by_its_own_form(run_control: Press, lake: ObjectStore, airflow: AirflowServer) -> None:
    run_control("stop", subject="landing", reason="the queue moves")

    assert present(StopFlag(lake, paths.stop_request(paths.relay_control("landing"))).read()).by == "grace"
    assert airflow.paused["landing__relay"]


def test_a_reader_is_unpinned_by_its_table_and_name(run_control: Press, lake: ObjectStore) -> None:
    readers = PipelineHome(lake, "shop").readers
    readers.pin("events", reader="training", version=7, hours=5)

    report = run_control("unpin", target="events/training")

    assert readers.read() == []
    assert "training no longer claims version 7 of shop.events." in report.parts


@pytest.mark.parametrize(
    ("verb", "target", "says"),
    [
        ("stop", "events", "shop runs: stream"),
        ("unpin", "events/nobody", "readers claim: nothing"),
    ],
)
def test_an_unknown_target_is_rejected_with_the_available_ones(
    run_control: Press, flag: StopFlag, verb: str, target: str | None, says: str
) -> None:
    with pytest.raises(ConfigError, match="CONTROL_TARGET_INVALID") as raised:
        run_control(verb, target=target)

    assert says in raised.value.message
    assert flag.read() is None
