"""`deltaworks down` pauses all DAGs and asks every stream to stop; the next `up` undoes that and nothing else."""

from __future__ import annotations

from pathlib import Path

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.errors import TransientError
from deltaworks.testing import write_project
from sandbox.stack.home import StackHome
from sandbox.stack.report import DownReport, describe_dags
from sandbox.stack.shutdown import StopFlags, pause_dags, unpause_dags
from sandbox.stack.state import load_state
from tests.airflow_server import AirflowServer, airflow_server
from tests.unit.specs.conftest import PIPELINE, RELAY


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
