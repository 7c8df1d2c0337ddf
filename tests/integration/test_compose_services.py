"""Runs the services of docker-compose.yaml in containers of this machine, built from the Dockerfile.

Needs root and Linux, but no Docker. Third-party images have substitutes (`containers/base_images.py`) with this
machine's programs. The content of `apache/airflow`, `apache/kafka`, `python` and `postgres`, and the installation
of packages into the images, are therefore not tested. The Compose file, the Dockerfile's COPY and RUN, and the scripts
are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from deltaworks.specs.weak_secrets import secret_weakness
from generator.engagement_org import Activity, Request
from sandbox.demo.answers import EditsTruth
from sandbox.stack.stack_programs import STORES
from tests.integration.containers import producers, table_counts
from tests.integration.containers.base_images import postgres_programs
from tests.integration.containers.health import Probe
from tests.integration.containers.namespace_host import GATEWAY, missing_rights
from tests.integration.containers.running import ROOT, RunningProject, check_out, running_project
from tests.integration.containers.specs import Condition, ProjectSpec
from tests.shared_data import SHARED_DATA
from tests.waiting import eventually

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing_rights()), reason=f"containers cannot be run here: {missing_rights()}"),
    pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed (apt-get install postgresql)"),
]
STARTS_WITHIN_SECONDS = 600.0
LANDS_WITHIN_SECONDS = 600.0
FAILS_WITHIN_SECONDS = 300.0
ONE_SHOT = ("airflow-init", "landing-init", "keyring-init")
#: Health is read from database entries or a file, so it changes with a delay.
TOLD_LATE = ("deadman", "airflow-dag-processor", "airflow-triggerer")
EDITS = SHARED_DATA / "wikipedia_edits" / "wikiticker-2015-09-12-sampled.json.gz"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningProject]:
    """The profile `local` with a pipeline of objects, one of records, and no other jobs: a test has two cores."""
    settings = check_out(tmp_path / "checkout") / "docker" / "local.env"
    text = settings.read_text().replace("DELTAWORKS_PIPELINES=\n", "DELTAWORKS_PIPELINES=edits,engagement\n")
    (settings.parent / "one.env").write_text(f"{text}DELTAWORKS_SCHEDULES=off\n")
    shell = {"DELTAWORKS_ENV_FILE": "docker/one.env"}
    with running_project(tmp_path, shell=shell, profiles=["local"]) as project:
        await_healthy(project)
        yield project


def await_healthy(project: RunningProject) -> None:
    for name in project.spec.services:
        condition = Condition.COMPLETED if name in ONE_SHOT else Condition.HEALTHY
        project.composition.await_condition(name, condition, seconds=STARTS_WITHIN_SECONDS)
    for name, service in project.composition.services.items():
        print(f"{name}: healthy after {service.healthy_after_seconds} s, started {service.starts} times")


def edits_file(folder: Path) -> Path:
    """A published day of Wikipedia edits, or generated edits of the same form without it."""
    if EDITS.is_file():
        return EDITS
    path = folder / "edits.json"
    lines = [
        {
            "time": f"2015-09-12T{n % 24:02d}:00:00Z",
            "channel": "#en",
            "page": f"p{n % 50}",
            "user": f"u{n % 90}",
            "added": n,
        }
        for n in range(5_000)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def counts(project: RunningProject) -> dict[str, int]:
    """Queries the lake in the scheduler's container, as a user would."""
    code = Path(table_counts.__file__).read_text()
    answer = project.composition.container("airflow-scheduler").execute(["python", "-c", code], timeout_seconds=120)
    assert answer.status == 0, answer.output
    found: dict[str, int] = json.loads(answer.output.splitlines()[-1])
    return found


def test_the_services_start_as_declared_land_events_and_end(running: RunningProject, tmp_path: Path) -> None:
    ports_are_published_on_loopback_alone(running)
    secrets_are_where_they_are_needed_and_on_no_command_line(running)
    spark_lets_nobody_in_without_the_secret(running)
    volumes_belong_to_who_writes_them(running)

    path = edits_file(tmp_path)
    truth, records = EditsTruth.from_file(path), [record.event for record in producers.engagement()]
    produce(running, "edits", str(path))
    produce(running, "engagement")
    expected = {
        "edits": truth.rows,
        "users": truth.users,
        "added": truth.added_bytes,
        "activities": sum(isinstance(record, Activity) for record in records),
        "requests": sum(isinstance(record, Request) for record in records),
    }
    eventually(lambda: counts(running) == expected, f"{expected} are in bronze", seconds=LANDS_WITHIN_SECONDS)

    secrets_are_where_they_are_needed_and_on_no_command_line(running)
    assert [name for name, service in running.composition.services.items() if service.starts != 1] == []
    everything_ends_in_its_grace(running)


def produce(project: RunningProject, *words: str) -> Any:
    """Runs a producer on the host, with the addresses of the published ports; returns what it prints."""
    keys = {name: value for name, value in project.secrets().items() if name.startswith("DELTAWORKS_AWS_")}
    addresses = {"DELTAWORKS_AWS_ENDPOINT": "http://127.0.0.1:5000", "DELTAWORKS_KAFKA_BOOTSTRAP": "127.0.0.1:9094"}
    variables = {"PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", **addresses, **keys}

    done = project.on_host(sys.executable, "-m", producers.__spec__.name, *words, variables=variables)

    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ports_are_published_on_loopback_alone(project: RunningProject) -> None:
    published = [port for service in project.spec.services.values() for port in service.ports]
    assert {port.port for port in published} == {5000, 8080, 8081, 8090, 9000, 9094, 9478}
    for port in published:
        at_home = project.on_host("curl", "--silent", "--output", "/dev/null", f"http://127.0.0.1:{port.port}/")
        from_elsewhere = project.on_host("curl", "--silent", "--max-time", "5", f"http://{GATEWAY}:{port.port}/")
        # 52: Kafka answers no HTTP.
        assert (port.port, at_home.returncode) == (port.port, 52 if port.port == 9094 else 0)
        assert (port.port, from_elsewhere.returncode) == (port.port, 7), "7: nobody listens there"


def secrets_are_where_they_are_needed_and_on_no_command_line(project: RunningProject) -> None:
    made = project.secrets()
    assert {name for name, value in made.items() if secret_weakness(value)} == set()
    folder = project.spec.folder / "docker" / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    lines = [line for process in psutil.process_iter() for line in command_line(process)]
    assert [name for name, value in made.items() if any(value in line for line in lines)] == []
    spark = made["DELTAWORKS_SPARK_SECRET"]
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        container = project.composition.container(name)
        properties = container.execute(["sh", "-c", "stat -c '%a %u' /tmp/spark-*.properties"])
        assert properties.output.splitlines() == ["600 50000"]
        assert not any(spark in variables_of(process) for process in container.processes() if is_daemon(process))


def command_line(process: psutil.Process) -> list[str]:
    try:
        return [" ".join(process.cmdline())]
    except psutil.Error:
        return []


def variables_of(process: psutil.Process) -> str:
    try:
        return "\n".join(process.environ().values())
    except psutil.Error:
        return ""


def is_daemon(process: psutil.Process) -> bool:
    """Whether a Java process is no executor: a worker passes the secret to executors in their environment."""
    return any(
        (line.startswith(("java", "/usr/lib/jvm")) or "/bin/java" in line) and "ExecutorBackend" not in line
        for line in command_line(process)
    )


def spark_lets_nobody_in_without_the_secret(project: RunningProject) -> None:
    """Starts a worker without the secret from a driver's place: the master has two workers before and after."""
    assert len(workers(project)) == 2
    stranger = project.composition.container("airflow-scheduler").execute(
        ["timeout", "25", "spark-class", "org.apache.spark.deploy.worker.Worker", "spark://spark-master:7077"],
        timeout_seconds=60,
    )
    assert stranger.status != 0
    assert "Successfully registered" not in stranger.output
    assert len(workers(project)) == 2


def workers(project: RunningProject) -> list[str]:
    """Returns the live workers on the master's published page."""
    page = project.on_host("curl", "--silent", "--fail", "http://127.0.0.1:8081/json/")
    return [worker["id"] for worker in json.loads(page.stdout)["workers"] if worker["state"] == "ALIVE"]


def volumes_belong_to_who_writes_them(project: RunningProject) -> None:
    login = project.composition.container("airflow-apiserver").execute(["stat", "-c", "%a %U", "auth/passwords.json"])
    assert login.output == "600 airflow"
    lake = project.composition.container("s3proxy").execute(["stat", "-c", "%U", "/opt/deltaworks/lake"])
    assert lake.output == "airflow"


def everything_ends_in_its_grace(project: RunningProject) -> None:
    containers = {name: project.composition.services[name].container for name in project.spec.services}
    pids = [container.pid for container in containers.values() if container is not None]

    start = time.monotonic()
    statuses = project.composition.down()

    print(f"down took {time.monotonic() - start:.0f} s: {statuses}")
    assert set(statuses) == set(project.spec.services) - set(ONE_SHOT)
    # 137 is SIGKILL: the process did not end within its grace period.
    assert {name: status for name, status in statuses.items() if status in (137, -9)} == {}
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_what_was_sent_outlives_a_kill_of_the_servers_that_took_it(tmp_path: Path) -> None:
    """Nobody reads here: objects, their announcements and the broker's records must be there after the kill."""
    check_out(tmp_path / "checkout")
    with running_project(tmp_path, shell={}, profiles=["local"], choose=only_stores) as project:
        await_healthy(project)
        produce(project, "edits", str(edits_file(tmp_path)))
        produce(project, "engagement")
        before = produce(project, "sent")
        assert before["objects"]
        assert min(before["records"].values()) > 0

        for name in STORES:
            service = project.composition.services[name]
            project.composition.container(name).kill()
            eventually(lambda: service.starts == 2, f"{name} starts again")  # noqa: B023
            project.composition.await_condition(name, Condition.HEALTHY, seconds=STARTS_WITHIN_SECONDS)

        assert produce(project, "sent") == before
        assert set(produce(project, "announced")) == set(before["objects"])
        (tmp_path / "one.json").write_text("{}\n")
        produce(project, "edits", str(tmp_path / "one.json"))
        assert ["one-" in key for key in produce(project, "announced")] == [True]


def only_stores(spec: ProjectSpec) -> ProjectSpec:
    """The servers of the embedded stack, and the service that makes what is in them."""
    return replace(spec, services={name: spec.services[name] for name in (*STORES, "landing-init")})


def test_each_health_check_fails_when_its_service_is_killed(running: RunningProject) -> None:
    composition = running.composition
    checked = [name for name, service in running.spec.services.items() if service.health_check is not None]
    at_once = [name for name in checked if name not in TOLD_LATE and name != "postgres"]
    assert failing(running, checked) == {}

    # Services checked through the database come first, the database last: each must fail by its own fault.
    for names in (TOLD_LATE, at_once, ["postgres"]):
        for name in names:
            composition.container(name).kill_service()
        killed_at = time.monotonic()
        failed: dict[str, Probe] = {}
        while set(failed) != set(names):
            for name in set(names) - set(failed):
                if (probe := composition.probe(name)).status != 0:
                    failed[name] = probe
                    print(f"{name}: fails {time.monotonic() - killed_at:.0f} s after the kill: {probe.output[-200:]}")
            assert time.monotonic() - killed_at < FAILS_WITHIN_SECONDS, set(names) - set(failed)
        if names is TOLD_LATE:
            assert failing(running, ["airflow-apiserver", "airflow-scheduler", "postgres"]) == {}


def failing(project: RunningProject, names: list[str]) -> dict[str, str]:
    """Returns the output of the failing health checks, by service."""
    probes = {name: project.composition.probe(name) for name in names}
    return {name: probe.output for name, probe in probes.items() if probe.status != 0}
