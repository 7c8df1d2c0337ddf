"""A stream under Airflow's own processes: after any kill no writer remains, and one stream restarts by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from deltaworks.control.provenance import airflow_run_of
from sandbox.stack.processes import stack_processes
from sandbox.stack.stack import down, status
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    GONE_SECONDS,
    AirflowHarness,
    alive,
    ancestors,
    running_harness,
    wait,
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project")) as harness:
        yield harness


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["driver", "jvm", "runner", "supervisor"])
def test_a_killed_process_leaves_no_writer_and_the_stream_restarts(harness: AirflowHarness, victim: str) -> None:
    before = harness.await_progress(len(harness.rows()))
    family = ancestors(before.pid)

    os.kill(family[victim], signal.SIGKILL)

    gone = (family["driver"], family["jvm"])
    wait(lambda: not any(alive(pid) for pid in gone), f"{victim}: driver or JVM outlived it", GONE_SECONDS)
    after = harness.await_progress(len(harness.rows()))
    assert after.pid != before.pid
    assert after.epoch > before.epoch


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["airflow-scheduler", "airflow-apiserver"])
def test_a_killed_airflow_process_restarts_and_the_stream_continues(harness: AirflowHarness, program: str) -> None:
    harness.await_progress(len(harness.rows()))
    (pid,) = (item.pid for item in status(home=harness.home).programs if item.name == program)
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    wait(lambda: not alive(pid), f"{program} did not die", 10)
    wait(lambda: status(home=harness.home).healthy, f"{program} did not come back", BACK_SECONDS)
    harness.await_progress(len(harness.rows()))


@pytest.mark.timeout(900)
def test_a_streams_run_has_a_note_about_its_last_hour(harness: AirflowHarness) -> None:
    beat = harness.await_progress(len(harness.rows()))
    dag_id, run_id = airflow_run_of(beat.run)
    addresses = status(home=harness.home).addresses
    assert addresses is not None

    with addresses.airflow_api() as airflow:
        # Every five minutes, and a heartbeat may be of a run that has ended since.
        wait(lambda: "last hour: " in airflow.dag_run(dag_id, run_id).note, f"no note on {dag_id} {run_id}", 420)
        note = airflow.dag_run(dag_id, run_id).note

    assert " events read, " in note
    assert "lag: " in note


@pytest.mark.timeout(900)
def test_every_event_is_landed_once_and_owners_never_alternate(harness: AirflowHarness) -> None:
    _, lost, doubled = harness.settle()

    turns = harness.turns()
    assert (lost, doubled) == (0, 0)
    assert len(turns) == len(set(turns)), "a run wrote again after its successor had begun"
    assert len(turns) >= 5


@pytest.mark.timeout(300)
def test_a_stop_ends_every_process_of_the_stack(harness: AirflowHarness) -> None:
    report = down(home=harness.home, grace_seconds=90)

    assert report.was_running
    assert not report.killed
    assert not stack_processes(harness.home)
