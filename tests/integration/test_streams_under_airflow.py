"""A stream under Airflow's own processes: whatever is killed, nothing keeps writing, one stream comes back by itself,
and every event is in the table once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from deltaworks.control.provenance import airflow_run_of
from sandbox.stack.processes import stack_processes
from sandbox.stack.stack import down, status
from tests.integration.airflow_stage import BACK_SECONDS, GONE_SECONDS, Stage, alive, ancestors, running_stage, wait

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_stage(tmp_path_factory.mktemp("project")) as stage:
        yield stage


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["driver", "jvm", "runner", "supervisor"])
def test_a_killed_process_leaves_nothing_that_writes_and_the_stream_comes_back(stage: Stage, victim: str) -> None:
    before = stage.await_progress(len(stage.rows()))
    family = ancestors(before.pid)

    os.kill(family[victim], signal.SIGKILL)

    gone = (family["driver"], family["jvm"])
    wait(lambda: not any(alive(pid) for pid in gone), f"{victim}: driver or JVM outlived it", GONE_SECONDS)
    after = stage.await_progress(len(stage.rows()))
    assert after.pid != before.pid
    assert after.epoch > before.epoch


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["airflow-scheduler", "airflow-api-server"])
def test_a_killed_airflow_process_comes_back_and_the_stream_goes_on(stage: Stage, program: str) -> None:
    stage.await_progress(len(stage.rows()))
    (pid,) = (item.pid for item in status(home=stage.home).programs if item.name == program)
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    wait(lambda: not alive(pid), f"{program} did not die", 10)
    wait(lambda: status(home=stage.home).healthy, f"{program} did not come back", BACK_SECONDS)
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_the_run_of_a_stream_has_a_note_of_what_its_last_hour_brought(stage: Stage) -> None:
    beat = stage.await_progress(len(stage.rows()))
    dag_id, run_id = airflow_run_of(beat.run)
    addresses = status(home=stage.home).addresses
    assert addresses is not None

    with addresses.airflow_api() as airflow:
        # Every five minutes, and a heartbeat may be of a run that has ended since.
        wait(lambda: "last hour: " in airflow.dag_run(dag_id, run_id).note, f"no note on {dag_id} {run_id}", 420)
        note = airflow.dag_run(dag_id, run_id).note

    assert " events read, " in note
    assert "lag: " in note


@pytest.mark.timeout(900)
def test_in_the_end_every_event_is_there_once_and_owners_never_wrote_in_turns(stage: Stage) -> None:
    _, lost, doubled = stage.settle()

    turns = stage.turns()
    assert (lost, doubled) == (0, 0)
    assert len(turns) == len(set(turns)), "a run wrote again after its successor had begun"
    assert len(turns) >= 5


@pytest.mark.timeout(300)
def test_a_stop_ends_every_process_of_the_stack(stage: Stage) -> None:
    report = down(home=stage.home, grace_seconds=90)

    assert report.was_running
    assert not report.killed
    assert not stack_processes(stage.home)
