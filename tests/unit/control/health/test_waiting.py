"""A stream without a free slot says so with numbers: in health, in `status`, and when it is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaworks.cli import context as cli_context
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import HeartbeatWriter, StopFlag
from deltaworks.control.health.report import (
    Report,
    check_subjects,
    subjects,
    unmeasured_pipelines,
    with_waiting_causes,
)
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.operations.continuous_jobs import continuous_job, start_job
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.shares import STREAM_SLOTS_VARIABLE, ClusterShares
from deltaworks.testing import catalog_of, declare_pipeline, declare_table, local_storage
from sandbox.stack.environment import stream_slots

GIB = 1 << 30


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Nine streams of their own and two that share a driver, on eight slots."""
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    specs = [spec(f"s{number}") for number in range(9)]
    return catalog_of(
        tmp_path,
        *specs,
        spec("g0", stream_group="small"),
        spec("g1", stream_group="small"),
        lake=local_storage(tmp_path / "lake"),
    )


def spec(name: str, **options: str) -> PipelineSpec:
    declared = declare_pipeline(declare_table("orders", "level int"))
    return PipelineSpec.model_validate(declared | {"pipeline": name} | options)


def run_streams(objects: ObjectStore, *names: str, **changes: object) -> None:
    for name in names:
        key = paths.heartbeat(paths.pipeline_control(name))
        writer = HeartbeatWriter(objects, key, pipeline=name, trigger_seconds=60)
        objects.put(key, json.dumps(writer.current.model_dump() | {"state": "running"} | changes).encode())


def reports(catalog: Catalog) -> dict[str, Report]:
    objects = open_objects(catalog.environment.lake)
    found = with_waiting_causes(catalog, check_subjects(subjects(catalog), objects))
    return {item.subject.name: item for item in found}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "failed", "error": {"condition": "JOB_FAILED", "message": "?", "retryable": False}},
        {"state": "ended", "written_at": "2020-01-01T00:00:00Z"},
        {"state": "running", "written_at": "2020-01-01T00:00:00Z"},
    ],
    ids=["failed", "ended", "silent"],
)
def test_the_next_step_names_the_dag_that_runs_the_stream(catalog: Catalog, changes: dict[str, object]) -> None:
    run_streams(open_objects(catalog.environment.lake), "s0", "g0", **changes)

    shown = reports(catalog)

    assert "the DAG s0__stream" in shown["s0"].verdict.next_step
    assert "the DAG small__stream_group" in shown["g0"].verdict.next_step


def test_tables_are_due_for_a_first_snapshot_once_their_stream_has_landed_for_a_while(catalog: Catalog) -> None:
    objects = open_objects(catalog.environment.lake)
    old = {"started_at": "2026-01-01T00:00:00+00:00", "batch_id": 1}
    run_streams(objects, "s0", "s1", "g0", **old)
    run_streams(objects, "s2", **old | {"started_at": utc_now().isoformat()})
    run_streams(objects, "s3", **old | {"batch_id": None})
    objects.put(paths.tables_summary("s1"), b"{}")

    assert sorted(unmeasured_pipelines(reports(catalog).values(), objects, now=utc_now())) == ["g0", "s0"]


def test_the_ninth_stream_waits_for_a_slot(catalog: Catalog) -> None:
    objects = open_objects(catalog.environment.lake)
    run_streams(objects, *(f"s{number}" for number in range(7)))

    assert reports(catalog)["s8"].verdict.cause == "NEVER_STARTED"
    run_streams(objects, "g0", "g1")
    waiting = reports(catalog)["s8"].verdict

    assert (waiting.state, waiting.cause) == ("unhealthy", "WAITS_FOR_SLOT")
    assert "8 of 8 of pool 'streams' are used by s0__stream, " in waiting.detail
    assert "small__stream_group" not in waiting.detail.partition("used by ")[0]
    assert "stream_group" in waiting.next_step
    assert reports(catalog)["g0"].verdict.cause == "OK"


@pytest.mark.parametrize("state", ["ended", "failed"])
def test_an_ended_stream_whose_slot_was_taken_waits_and_a_stopped_one_does_not(catalog: Catalog, state: str) -> None:
    objects = open_objects(catalog.environment.lake)
    run_streams(objects, *(f"s{number}" for number in range(8)))
    run_streams(objects, "s8", state=state)

    assert reports(catalog)["s8"].verdict.cause == ("WAITS_FOR_SLOT" if state == "ended" else "FAILED")
    StopFlag(objects, paths.stop_request(paths.pipeline_control("s8"))).set(by="ada", reason="test")
    assert reports(catalog)["s8"].verdict.state == "stopped"


@pytest.mark.parametrize(("running", "said"), [(8, "8 of 8 of pool 'streams'"), (7, "within seconds")])
def test_a_start_says_whether_it_has_to_wait(catalog: Catalog, running: int, said: str) -> None:
    run_streams(open_objects(catalog.environment.lake), *(f"s{number}" for number in range(running)))
    lines: list[str] = []

    class Airflow:
        def __enter__(self) -> Airflow:
            return self

        def __exit__(self, *error: object) -> None: ...

        def unpause(self, dag_id: str) -> None: ...

        def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[()]:
            return ()

    start_job(continuous_job(catalog, "s8", is_start=True), connect=Airflow, echo=lines.append)  # type: ignore[arg-type]

    assert said in " ".join(lines)


def test_slots_of_the_stack_follow_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [stream_slots(gibibytes * GIB) for gibibytes in (4, 8, 16, 64)] == [6, 6, 12, 32]
    assert ClusterShares().pools()["streams"].slots == 8
    monkeypatch.setenv(STREAM_SLOTS_VARIABLE, "12")
    assert ClusterShares().pools()["streams"].slots == 12
    assert ClusterShares.model_validate({"stream": {"slots": 3}}).pools()["streams"].slots == 3
