"""The embedded stack with real processes: it starts, restarts failed parts, stops, and resumes without a loss."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaworks.airflow_client.api import AirflowApi, DagRun
from deltaworks.testing import present, write_files
from sandbox.demo.landing_sink import landing_sink
from sandbox.demo.memory import sample_memory
from sandbox.servers.landing import LAKE_BUCKET, LANDING_BUCKET, landing_client, list_requests
from sandbox.stack.environment import process_environment, read_env
from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes
from sandbox.stack.report import StackAddresses
from sandbox.stack.shutdown import StopFlags
from sandbox.stack.stack import down, status, up
from sandbox.stack.supervisor import Supervisor
from tests.integration.airflow_harness import BACK_SECONDS, AirflowHarness, running_harness, wait
from tests.processes import run_process

TASK_SECONDS = 20
# By default Airflow ends a task about 30 s after its API server is gone.
OUTAGE_SECONDS = 55
LONG_TASK_SECONDS = 90
# Airflow waits 30 s for a killed scheduler before it restarts its tasks.
HEAL_SECONDS = 150.0
DAG = f"""
from datetime import datetime
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("endless", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1, catchup=False):
    BashOperator(task_id="work", bash_command="sleep {TASK_SECONDS}", pool="streams")
with DAG("long", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    BashOperator(task_id="work", bash_command="sleep {LONG_TASK_SECONDS}", pool="streams")
with DAG("asleep", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1, catchup=False):
    BashOperator(task_id="work", bash_command="sleep {TASK_SECONDS}", pool="streams")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackHome]:
    folder = tmp_path_factory.mktemp("stack")
    dags = folder / "dags"
    write_files(folder, {"dags/endless.py": DAG})
    found = StackHome.at(folder / "home", dags_folder=dags)
    yield found
    down(home=found, grace_seconds=0)


@pytest.fixture
def addresses(home: StackHome) -> StackAddresses:
    return up(home=home)


@pytest.fixture
def api(addresses: StackAddresses) -> Iterator[AirflowApi]:
    with addresses.airflow_api() as found:
        yield found


def _wait(condition: Callable[[], bool], what: str, seconds: float = HEAL_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(1)


def _pid(home: StackHome, program: str) -> int:
    (pid,) = (item.pid for item in status(home=home).programs if item.name == program)
    assert pid is not None
    return pid


def _kill(home: StackHome, program: str) -> int:
    pid = _pid(home, program)
    os.kill(pid, signal.SIGKILL)
    return pid


def _heals(home: StackHome, program: str, killed: int) -> None:
    def is_back() -> bool:
        found = status(home=home)
        return found.healthy and _pid(home, program) != killed

    _wait(lambda: any(p.name == program and p.pid not in (None, killed) for p in status(home=home).programs), program)
    _wait(is_back, f"{program} did not come back")


def _running_since(api: AirflowApi, moment: float) -> DagRun | None:
    """Returns the run whose running task started after `moment`."""
    for run in api.dag_runs("endless"):
        for task in api.task_instances("endless", run.run_id):
            if task.state == "running" and task.start is not None and task.start.timestamp() > moment:
                return run
    return None


def _await_task(api: AirflowApi, moment: float) -> DagRun:
    _wait(lambda: _running_since(api, moment) is not None, "no task was started")
    return present(_running_since(api, moment))


def test_everything_is_healthy_and_a_second_up_changes_nothing(home: StackHome, addresses: StackAddresses) -> None:
    before = {process.pid for process in stack_processes(home) if process.kind in ("supervisor", "moto", "s3proxy")}

    again = up(home=home)

    assert again.already_running
    assert again.ports == addresses.ports
    assert status(home=home).healthy
    assert before <= {process.pid for process in stack_processes(home)}
    assert sample_memory(home, include_caller=False).total_bytes < 2 << 30


def test_a_landed_object_is_announced_and_nobody_listed_the_bucket(home: StackHome) -> None:
    environment = read_env(home)
    keys = {
        "endpoint": environment["DELTAWORKS_AWS_ENDPOINT"],
        "access_key": environment["DELTAWORKS_AWS_ACCESS_KEY"],
        "secret_key": environment["DELTAWORKS_AWS_SECRET_KEY"],
    }
    landing_client("s3", **keys).put_object(Bucket=LANDING_BUCKET, Key="games/one", Body=b"{}")

    answer = landing_client("sqs", **keys).receive_message(
        QueueUrl=environment["DELTAWORKS_LANDING_QUEUE_URL"], MaxNumberOfMessages=10, WaitTimeSeconds=2
    )

    assert any("games" in message["Body"] for message in answer["Messages"])
    assert list_requests(home.request_log) == 0


def test_a_killed_api_server_comes_back(home: StackHome, addresses: StackAddresses) -> None:
    _heals(home, "airflow-apiserver", _kill(home, "airflow-apiserver"))

    assert status(home=home).healthy


def test_a_running_task_lives_through_an_outage_of_the_api_server(home: StackHome, api: AirflowApi) -> None:
    run_id = api.trigger("long").run_id
    _wait(lambda: api.task_instances("long", run_id)[0].state == "running", "the task did not start")

    Supervisor(home).stop(["airflow-apiserver"], seconds=30)
    time.sleep(OUTAGE_SECONDS)
    up(home=home)

    assert api.wait_for_run("long", run_id, timeout_seconds=HEAL_SECONDS).state == "success"
    assert [task.try_number for task in api.task_instances("long", run_id)] == [1]


def test_a_killed_scheduler_comes_back_and_leaves_no_worker_behind(home: StackHome, api: AirflowApi) -> None:
    _await_task(api, time.time() - TASK_SECONDS)
    workers = {
        process.pid for process in stack_processes(home) if process.kind in ("worker-idle", "worker-busy", "task")
    }
    killed_at = time.time()

    _heals(home, "airflow-scheduler", _kill(home, "airflow-scheduler"))

    assert workers.isdisjoint(process.pid for process in stack_processes(home))
    _await_task(api, killed_at)


def test_a_killed_landing_server_comes_back_wired(home: StackHome, addresses: StackAddresses) -> None:
    _heals(home, "moto", _kill(home, "moto"))

    assert status(home=home).healthy


def test_down_leaves_nothing_alive_and_up_goes_on_where_it_was(home: StackHome, addresses: StackAddresses) -> None:
    environment = read_env(home)
    lake = landing_client(
        "s3",
        endpoint=environment["DELTAWORKS_LAKE_ENDPOINT"],
        access_key=environment["DELTAWORKS_LAKE_ACCESS_KEY"],
        secret_key=environment["DELTAWORKS_LAKE_SECRET_KEY"],
    )
    lake.put_object(Bucket=LAKE_BUCKET, Key="kept", Body=b"kept")
    flags = StopFlags.load(home)
    declared = [*flags.relays.values(), *flags.pipelines.values()]
    with addresses.airflow_api() as api:
        api.pause("asleep")

    report = down(home=home)

    assert (report.paused_dags, report.notes, report.killed) == (("endless", "long"), (), ())
    assert stack_processes(home) == ()
    assert not status(home=home).running

    again = up(home=home)

    assert again.ports == addresses.ports
    assert lake.get_object(Bucket=LAKE_BUCKET, Key="kept")["Body"].read() == b"kept"
    assert [flag.read() for flag in declared] == [None] * len(declared)
    with again.airflow_api() as api:
        assert {dag.dag_id: dag.is_paused for dag in api.dags()} == {"endless": False, "long": False, "asleep": True}
        _await_task(api, time.time() - TASK_SECONDS)


def test_leftovers_of_a_killed_supervisor_are_ended_by_down(home: StackHome, addresses: StackAddresses) -> None:
    (supervisor,) = (process.pid for process in stack_processes(home) if process.kind == "supervisor")
    os.kill(supervisor, signal.SIGKILL)
    _wait(lambda: not status(home=home).running, "the supervisor is still there")
    assert status(home=home).leftovers

    report = down(home=home)

    assert not report.was_running
    assert stack_processes(home) == ()


def test_logs_are_kept_for_every_program(home: StackHome) -> None:
    logs = {path.name for path in Path(home.logs).iterdir()}

    assert {"moto.log", "s3proxy.log", "airflow-scheduler.log", "airflow-apiserver.log", "supervisord.log"} <= logs


OBJECTS, EVENTS = 3, 10


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("stage")) as harness:
        yield harness


@pytest.mark.timeout(1800)
def test_what_landed_unread_before_a_stop_is_read_once_after_the_start(harness: AirflowHarness) -> None:
    harness.await_progress(0)
    sent, *_ = harness.settle()
    relay = StopFlags.load(harness.home).relays["landing"]
    relay.set(by="a test", reason="so that nobody reads what lands now")
    wait(lambda: "relay" not in _kinds(harness), "the relay has not ended", BACK_SECONDS)
    put = landing_sink(harness.catalog.environment.landing)
    for first in range(sent, sent + OBJECTS * EVENTS, EVENTS):
        lines = (json.dumps({"number": first + i, "at": 1_700_000_000 + first + i}) for i in range(EVENTS))
        put(f"clicks/2023/11/14/22/{first:08d}.json", "\n".join(lines).encode())

    down(home=harness.home)
    up(home=harness.home)
    relay.clear()

    owed = Counter(range(sent + OBJECTS * EVENTS))
    wait(lambda: len(harness.rows()) >= owed.total(), "what landed before the stop does not arrive", BACK_SECONDS)
    assert Counter(harness.rows()) == owed


@pytest.mark.timeout(900)
def test_what_landed_before_a_stop_can_be_reprocessed_after_the_start(harness: AirflowHarness) -> None:
    before = Counter(harness.rows())
    command = [sys.executable, "-m", "deltaworks.cli", "reprocess", "clicks", "--from-start", "--no-dry-run"]

    done = run_process(command, env=process_environment(harness.home), timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(before) // EVENTS} objects" in done.stdout
    assert Counter(harness.rows()) == before


def _kinds(harness: AirflowHarness) -> set[str]:
    return {process.kind for process in stack_processes(harness.home)}
