"""Processes of a stack are found, prevent a second start, and are asked to stop by `deltaworks down`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.errors import ConcurrencyError, TransientError
from deltaworks.testing import write_project
from sandbox.airflow.component import end_abandoned_workers
from sandbox.demo.memory import PeakMemory, sample_memory
from sandbox.stack.home import StackHome
from sandbox.stack.processes import StackProcess, end_processes, stack_processes, with_descendants
from sandbox.stack.report import DownReport, describe_dags
from sandbox.stack.shutdown import StopFlags, pause_dags, unpause_dags
from sandbox.stack.stack import down, reject_leftovers, status
from sandbox.stack.state import load_state
from tests.airflow_server import AirflowServer, airflow_server
from tests.unit.specs.conftest import PIPELINE, RELAY
from tests.waiting import eventually

Process = subprocess.Popen[bytes]
Started = Callable[..., Process]
# Each says that it is ready with an empty line.
_SLEEP = "import time; print(flush=True); time.sleep(3600)"
_IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SLEEP}"
_IDLE_WORKER = "airflow worker -- LocalExecutor: <idle>"
_BUSY_WORKER = "airflow worker -- LocalExecutor: 01a1"


@pytest.fixture
def home(tmp_path: Path) -> StackHome:
    found = StackHome.at(tmp_path / "stack")
    found.create()
    return found


@pytest.fixture
def start(home: StackHome) -> Iterator[Started]:
    """Starts Python code as a process of the stack; its arguments say what it looks like."""
    started = []

    def launch(code: str, *arguments: str, environ: bool = True, cwd: Path | None = None) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | ({"DELTAWORKS_HOME": str(home.root)} if environ else {}),
            cwd=cwd,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield launch
    for process in started:
        process.kill()
        process.wait()


def _titled(title: str, code: str = _SLEEP) -> str:
    return f"import setproctitle; setproctitle.setproctitle({title!r}); {code}"


def _lives(process: Process) -> bool:
    try:
        return psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kinds(home: StackHome) -> dict[int, str]:
    return {process.pid: process.kind for process in stack_processes(home)}


def test_a_stream_is_found_by_its_environment(home: StackHome, start: Started) -> None:
    stream = start(_SLEEP, "/app/spark_jobs/ingest_stream.py", "--pipeline", "games")

    assert _kinds(home)[stream.pid] == "stream"


def test_a_process_that_wiped_its_environment_is_found_by_its_folder(home: StackHome, start: Started) -> None:
    worker = start(_titled(_IDLE_WORKER), environ=False, cwd=home.run)

    assert _kinds(home)[worker.pid] == "worker-idle"


def test_processes_of_another_stack_or_of_no_kind_are_not_ours(home: StackHome, start: Started, tmp_path: Path) -> None:
    start(_SLEEP, "spark_jobs/ingest_stream.py", environ=False)
    start(_SLEEP, "notes.txt")

    assert _kinds(home) == {}
    assert _kinds(StackHome.at(tmp_path / "other")) == {}


def test_a_start_beside_leftovers_is_refused_naming_them(home: StackHome, start: Started) -> None:
    reject_leftovers(home)
    stream = start(_SLEEP, "spark_jobs/ingest_stream.py")
    assert _kinds(home)[stream.pid] == "stream"

    with pytest.raises(ConcurrencyError) as caught:
        reject_leftovers(home)

    assert caught.value.condition == "STACK_LEFTOVERS"
    assert f"{stream.pid} (stream)" in caught.value.message
    assert "deltaworks down" in caught.value.hint
    assert [process.pid for process in status(home=home).leftovers] == [stream.pid]


def test_an_operation_without_spark_is_a_job_of_the_stack(home: StackHome, start: Started) -> None:
    vacuum = start(_SLEEP, "-m", "deltaworks.operations", "vacuum_tables")

    assert _kinds(home)[vacuum.pid] == "job"


def test_down_ends_leftovers_and_kills_those_that_do_not_listen(home: StackHome, start: Started) -> None:
    polite = start(_SLEEP, "spark_jobs/ingest_stream.py")
    stubborn = start(_IGNORES_SIGTERM, "spark_jobs/rebuild_gold.py")
    assert _kinds(home)[stubborn.pid] == "job"

    report = down(home=home, grace_seconds=3)

    assert not report.was_running
    assert [process.pid for process in report.killed] == [stubborn.pid]
    assert not _lives(polite)
    assert not _lives(stubborn)


def test_a_stack_that_never_ran_is_stopped_already(tmp_path: Path) -> None:
    home = StackHome.at(tmp_path / "none")

    assert not down(home=home).was_running
    assert not status(home=home).running
    assert not home.root.exists()


def test_a_process_that_took_over_an_id_is_left_alone(home: StackHome, start: Started) -> None:
    innocent = start(_SLEEP, "spark_jobs/ingest_stream.py")
    stale = StackProcess(innocent.pid, "stream", "", time.time() - 3600, 1)

    assert end_processes([stale], seconds=0) == ()
    assert _lives(innocent)


def test_what_a_killed_scheduler_left_is_killed_with_all_it_started(home: StackHome, start: Started) -> None:
    # Deaf to SIGTERM, as a worker of a LocalExecutor is.
    spawns = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_SLEEP!r}]); {_IGNORES_SIGTERM}"
    worker = start(_titled(_BUSY_WORKER, spawns), cwd=home.run)
    by_hand = start(_SLEEP, "spark_jobs/ingest_stream.py")
    assert _kinds(home)[worker.pid] == "worker-busy"
    assert _kinds(home)[by_hand.pid] == "stream"
    found = with_descendants(process for process in stack_processes(home) if process.pid == worker.pid)
    assert len(found) == 2

    assert end_abandoned_workers(home) == 2

    assert not any(psutil.pid_exists(process.pid) for process in found)
    assert _lives(by_hand)


def test_the_peak_is_the_largest_sample_and_counts_the_stack_and_the_caller(home: StackHome, start: Started) -> None:
    with PeakMemory(home, interval_seconds=0.05) as memory:
        small = memory.peak.total_bytes
        process = start(f"x = b'x' * (80 << 20); {_SLEEP}", "spark_jobs/ingest_stream.py")
        assert _kinds(home)[process.pid] == "stream"
        eventually(lambda: memory.peak.by_kind.get("stream", 0) > 80 << 20, "it is sampled")
        process.kill()
        process.wait()

    assert memory.peak.by_kind["stream"] > 80 << 20
    assert memory.peak.by_kind["caller"] > 0
    assert memory.peak.total_bytes > small + (60 << 20)
    assert sample_memory(home).by_kind.keys() == {"caller"}


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("sandbox.servers.moto_server", "moto"),
        ("deltaworks.alerts.deadman", "deadman"),
        ("sandbox.stack.companion", "deadman"),
        ("deltaworks.sources.objects.relay", "relay"),
        ("sandbox.airflow.component", "airflow"),
    ],
)
def test_modules_that_the_stack_runs_are_there_and_are_found_by_their_names(
    home: StackHome, start: Started, module: str, kind: str
) -> None:
    process = start(_SLEEP, "-m", module)

    assert importlib.util.find_spec(module) is not None
    assert _kinds(home)[process.pid] == kind


def test_streams_whose_declarations_are_wrong_are_asked_to_stop_too(tmp_path: Path) -> None:
    write_project(tmp_path, PIPELINE, "pipeline: store\n", relays=[RELAY, "relay: second\n"])
    home = StackHome.at(tmp_path / "home", project=tmp_path)
    home.create()
    home.env_file.write_text("DELTAWORKS_ENVIRONMENT=local\n")

    flags = StopFlags.load(home)

    assert sorted(flags.relays) == ["landing", "second"]
    assert sorted(flags.pipelines) == ["shop", "store"]
    assert sorted(flags.processes) == ["rules", "shop__feeds"]


def home_in(folder: Path) -> StackHome:
    home = StackHome.at(folder / "home", project=folder)
    home.create()
    return home


def client(server: AirflowServer) -> AirflowApi:
    name, password = server.login
    return AirflowApi(AirflowLogin(url=server.url, source="the tests", username=name, password=password))


def test_all_dags_are_paused_by_one_request_and_run_again_by_another(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with airflow_server("gold", "relay", "stream") as server, client(server) as api:
        assert pause_dags(home, api) == ()
        assert set(server.paused.values()) == {True}
        assert load_state(home).paused_dags == ("gold", "relay", "stream")

        assert unpause_dags(home, api) == ("gold", "relay", "stream")
        assert set(server.paused.values()) == {False}
        assert len(server.changes()) == 2
    assert load_state(home).paused_dags == ()


def test_a_dag_that_its_owner_has_paused_stays_so(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with airflow_server("gold", "relay", "stream") as server, client(server) as api:
        api.pause("gold")
        pause_dags(home, api)

        assert unpause_dags(home, api) == ("relay", "stream")
        assert server.paused == {"gold": True, "relay": False, "stream": False}


def test_a_dag_that_comes_while_all_are_paused_runs_again_too(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with airflow_server("gold") as server, client(server) as api:

        class Finding(AirflowApi):
            """A client before whose pausing Airflow finds another DAG."""

            def pause_all(self, *, paused: bool = True) -> None:
                server.paused.setdefault("stream", False)
                super().pause_all(paused=paused)

        with Finding(api.login) as finding:
            pause_dags(home, finding)
            assert server.paused == {"gold": True, "stream": True}
            assert unpause_dags(home, finding) == ("gold", "stream")
        assert server.paused == {"gold": False, "stream": False}


def test_a_dag_that_comes_once_all_are_paused_is_paused_too(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with airflow_server("gold") as server, client(server) as api:

        class Finding(AirflowApi):
            """A client behind whose pausing Airflow finds another DAG."""

            def pause_all(self, *, paused: bool = True) -> None:
                super().pause_all(paused=paused)
                server.paused["stream"] = False

        with Finding(api.login) as finding:
            pause_dags(home, finding)

    assert server.paused == {"gold": True, "stream": True}
    assert load_state(home).paused_dags == ("gold", "stream")


def test_a_down_that_could_pause_nothing_says_so_and_leaves_nothing_to_unpause_twice(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with airflow_server("gold", "stream") as server, client(server) as api:

        class Failing(AirflowApi):
            """A client whose pausing is refused."""

            def pause_all(self, *, paused: bool = True) -> None:
                raise TransientError("AIRFLOW_UNREACHABLE", "busy", hint="again")

        with Failing(api.login) as failing:
            (note,) = pause_dags(home, failing)
        assert unpause_dags(home, api) == ()
        assert server.changes() == []

    assert "Not all of gold, stream could be paused" in note


def test_few_dags_are_named_and_many_counted() -> None:
    assert describe_dags(["a", "b"]) == "a, b"
    assert describe_dags([str(number) for number in range(150)]) == "150 DAGs"
    report = DownReport(True, tuple(map(str, range(150))), (), (), 80.4)
    assert report.describe() == "Stopped in 80 s; the next `up` unpauses 150 DAGs."
