"""Containers of this machine behave like Docker's; uses three small services of the Compose file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.containers.base_images import postgres_programs
from tests.integration.containers.health import Health
from tests.integration.containers.namespace_host import GATEWAY, container_address, missing_rights
from tests.integration.containers.running import RunningProject, check_out, running_project
from tests.integration.containers.specs import Condition, ProjectSpec
from tests.waiting import eventually

pytestmark = [
    pytest.mark.skipif(bool(missing_rights()), reason=f"containers cannot be run here: {missing_rights()}"),
    pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed (apt-get install postgresql)"),
]
NAMES = ("postgres", "s3proxy", "moto")
MOTO_PAGE = f"http://{container_address(NAMES.index('moto'))}:5000/moto-api/"


def only_light(spec: ProjectSpec) -> ProjectSpec:
    return replace(spec, services={name: spec.services[name] for name in NAMES})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProject]:
    folder = tmp_path_factory.mktemp("project")
    check_out(folder / "checkout")
    with running_project(folder, shell={}, profiles=["local"], choose=only_light) as project:
        for name in NAMES:
            project.composition.await_condition(name, Condition.HEALTHY, seconds=240)
        yield project


def test_services_find_each_other_by_name_and_know_their_own(running: RunningProject) -> None:
    answer = running.composition.container("moto").execute(["sh", "-c", "getent hosts postgres; hostname; id -u; pwd"])

    lines = answer.output.splitlines()
    assert lines[0].split() == ["172.30.0.2", "postgres"]
    assert lines[1:] == [running.composition.container("moto").variables["HOSTNAME"], "50000", "/opt/airflow"]


def test_a_service_with_a_read_only_root_writes_to_its_volumes_and_tmp(running: RunningProject) -> None:
    moto, postgres = (running.composition.container(name) for name in ("moto", "postgres"))
    write = [
        "sh",
        "-c",
        "for place in /opt/airflow /home/airflow /tmp /opt/deltaworks/landing; do touch $place/x; done",
    ]

    refused = moto.execute(write).output

    assert "/opt/airflow/x': Read-only file system" in refused
    assert "/home/airflow/x': Read-only file system" in refused
    assert "/tmp/x" not in refused
    assert "/opt/deltaworks/landing/x" not in refused
    assert postgres.execute(["sh", "-c", "touch /tmp/x"]).output == ""


def test_the_database_lets_in_who_has_its_password_and_nobody_else(running: RunningProject) -> None:
    moto, password = running.composition.container("moto"), running.secrets()["POSTGRES_PASSWORD"]
    query = ["psql", "--host=postgres", "--username=airflow", "--no-password", "-tc", "select current_user", "airflow"]

    assert "no password supplied" in moto.execute(query).output
    assert moto.execute(query, variables={"PGPASSWORD": password}).output == "airflow"
    assert not any(password in line for line in running.composition.container("postgres").command_lines())


def test_a_port_is_published_where_the_file_says_and_not_beyond_the_namespaces(running: RunningProject) -> None:
    look = ["curl", "--silent", "--fail", "--output", "/dev/null", "--max-time", "5"]

    assert running.on_host(*look, "http://127.0.0.1:5000/moto-api/").returncode == 0
    assert running.on_host(*look, f"http://{GATEWAY}:5000/moto-api/").returncode == 7
    assert running.on_host(*look, MOTO_PAGE).returncode == 0
    assert subprocess.run([*look, MOTO_PAGE], check=False).returncode != 0


def test_a_service_that_was_killed_is_started_again_with_its_volume(running: RunningProject) -> None:
    service = running.composition.services["postgres"]
    before = service.starts

    running.composition.container("postgres").kill()

    eventually(lambda: service.starts == before + 1 and service.state.health is Health.HEALTHY, "postgres is back")
    # The database is created once.
    assert service.log.read_text().count("listening on IPv4") == before + 1
    assert service.log.read_text().count("Success. You can now start the database server") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_health_check_fails_by_itself_while_the_container_stays(running: RunningProject, name: str) -> None:
    assert running.composition.probe(name).status == 0

    assert running.composition.container(name).kill_service() > 0

    probe = running.composition.probe(name)
    assert (name, probe.status) in {("postgres", 2), ("s3proxy", 7), ("moto", 7)}
    assert running.composition.container(name).execute(["true"]).status == 0


def test_nothing_is_left_after_down(tmp_path: Path) -> None:
    check_out(tmp_path / "checkout")
    with running_project(tmp_path, shell={}, profiles=["local"], choose=only_light) as project:
        for name in NAMES:
            project.composition.await_condition(name, Condition.HEALTHY, seconds=240)
        statuses = project.composition.down()
        # The address is free again.
        look = project.on_host("curl", "--silent", "--max-time", "5", MOTO_PAGE)

    # 143: a JVM ends so on SIGTERM.
    assert statuses == {"postgres": 0, "s3proxy": 143, "moto": 0}
    assert look.returncode != 0
    assert not Path(f"/proc/{project.host.pid}").exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
