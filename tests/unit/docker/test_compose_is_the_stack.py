"""docker-compose.yaml with the profile `local` is the system of `make up`: servers, environment and pipelines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.servers.kafka_broker import BrokerCommand, broker_command
from sandbox.stack.declared_topics import declared_collector
from sandbox.stack.home import StackHome
from sandbox.stack.ports import COMPONENTS
from sandbox.stack.secrets import load_or_create_secrets
from sandbox.stack.stack_programs import DEADMAN, KAFKA, MOTO, PROGRAMS, S3PROXY, stack_programs
from tests.integration.containers.compose_file import read_compose
from tests.integration.containers.specs import ServiceSpec
from tests.unit.docker.secrets_script import make_secrets

ROOT = Path(__file__).resolve().parents[3]
S3PROXY_SCRIPT = (ROOT / "docker" / "s3proxy.sh").read_text()
KAFKA_VERSION = re.findall(r"<kafka.version>(.*)<", (ROOT / "include/jars/broker/pom.xml").read_text())[0]
#: Services without a program of the stack, and why.
NO_PROGRAM = {
    "postgres": "the stack's Airflow has SQLite",
    "airflow-init": "`make up` does it",
    "landing-init": "`make up` does it",
    "keyring-init": "the stack's programs run as one user, with one keyring",
    "metrics": "`deltaworks metrics` serves them",
    "spark-master": "the stack's drivers are their own cluster",
    "spark-worker-1": "the stack's drivers are their own cluster",
    "spark-worker-2": "the stack's drivers are their own cluster",
}
#: What differs from the stack: containers reach each other by names.
ADDRESSES = {"listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs"}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServiceSpec]:
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "docker").mkdir()
    for name in ("docker-compose.yaml", "docker/local.env"):
        (folder / name).write_text((ROOT / name).read_text())
    make_secrets(folder / "docker" / "secrets")
    return dict(read_compose(folder / "docker-compose.yaml", shell={}, profiles=["local"]).services)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """The commands of a stack that runs all pipelines."""
    jar = tmp_path / re.findall(r"s3proxy-\S+\.jar", S3PROXY_SCRIPT)[0]
    monkeypatch.setattr("sandbox.servers.object_store.ensure_jars", lambda: type("Jars", (), {"s3proxy_jar": jar}))
    monkeypatch.setattr("sandbox.servers.kafka_broker.ensure_broker_jars", lambda **_options: tmp_path)
    monkeypatch.setattr(BrokerCommand, "prepare", lambda _command: None)
    home = StackHome.at(tmp_path / "home", project=ROOT)
    home.create()
    programs = stack_programs(
        home,
        ports=dict(zip(COMPONENTS, range(1, 20), strict=False)),
        keys=load_or_create_secrets(home.secrets_file),
        with_broker=True,
        collector=declared_collector(home),
    )
    return {program.name: program.command for program in programs}


def test_every_program_of_the_stack_is_a_service_of_its_name(services: dict[str, ServiceSpec]) -> None:
    assert set(services) - set(NO_PROGRAM) == set(PROGRAMS)


def test_a_service_runs_what_the_program_of_its_name_runs(
    services: dict[str, ServiceSpec], commands: dict[str, tuple[str, ...]]
) -> None:
    assert set(commands) == set(PROGRAMS)
    of_python = set(PROGRAMS) - {KAFKA, S3PROXY}
    of_services = {name: module_and_words(services[name].command or ()) for name in of_python}
    of_stack = {name: module_and_words(commands[name]) for name in of_python}
    # In the stack the same program also adds servers that new pipelines need; Compose declares its services.
    assert of_stack.pop(DEADMAN) == ("sandbox.stack.companion",)
    assert of_services.pop(DEADMAN) == ("deltaworks.alerts.deadman",)
    assert of_services == of_stack
    assert services[S3PROXY].command == ("bash", "/opt/deltaworks/s3proxy.sh")
    assert jar_of(S3PROXY_SCRIPT.split()) == jar_of(commands[S3PROXY])
    assert services[KAFKA].image.partition("@")[0] == f"apache/kafka:{KAFKA_VERSION}"
    assert (services[KAFKA].entrypoint, services[KAFKA].command) == (None, None), "those of the image"
    assert "kafka.Kafka" in commands[KAFKA]


def test_the_landing_side_keeps_its_state_as_in_the_stack(
    services: dict[str, ServiceSpec], commands: dict[str, tuple[str, ...]]
) -> None:
    given = {word for word in services[MOTO].command or () if word.startswith("--")}

    assert given - {"--host"} == {word for word in commands[MOTO] if word.startswith("--")}


def module_and_words(command: Sequence[str]) -> tuple[str, ...]:
    """The Python module and its words before the first option; Airflow's component alone."""
    words = list(command[command.index("-m") + 1 :] if "-m" in command else command)
    if words[0] == "sandbox.airflow.component":
        del words[0]
    options = [at for at, word in enumerate(words) if word.startswith("--")]
    return tuple(words[: options[0]] if options else words)


def jar_of(words: Sequence[str]) -> tuple[str, ...]:
    """The jar's name and the heap that Java is given."""
    return Path(words[list(words).index("-jar") + 1]).name, next(word for word in words if word.startswith("-Xmx"))


def test_the_broker_has_the_settings_of_the_stacks(
    services: dict[str, ServiceSpec], commands: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    broker = broker_command(directory=tmp_path, port=9092, controller_port=9093, properties_file=tmp_path / "kafka")
    variables = {name: value for name, value in services[KAFKA].variables.items() if name.startswith("KAFKA_")}
    heap = variables.pop("KAFKA_HEAP_OPTS")
    settings = {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in variables.items()}

    assert heap in commands[KAFKA]
    assert set(settings) == set(broker.properties)
    assert without(settings, ADDRESSES) == without(broker.properties, ADDRESSES)


def test_the_lakes_server_has_the_settings_of_the_stacks(commands: dict[str, tuple[str, ...]]) -> None:
    written = Path(commands[S3PROXY][-1]).read_text()
    own = {"s3proxy.endpoint", "s3proxy.identity", "s3proxy.credential", "jclouds.filesystem.basedir"}

    of_service, of_program = (
        dict(re.findall(r"^([a-z][\w.]*)=(.*)$", text, re.M)) for text in (S3PROXY_SCRIPT, written)
    )
    of_service.pop("properties")
    assert set(of_service) == set(of_program)
    assert without(of_service, own) == without(of_program, own)


def test_the_environment_is_that_of_the_stack_but_for_the_cluster() -> None:
    local, compose = (
        yaml.safe_load((ROOT / "include" / "environments" / f"{name}.yaml").read_text())
        for name in ("local", "compose")
    )

    assert (local.pop("environment"), compose.pop("environment")) == ("local", "compose")
    assert {name: compose["spark"].pop(name) for name in ("protected", "secret")} == {
        "protected": True,
        "secret": "env:DELTAWORKS_SPARK_SECRET",
    }
    assert without(compose, {"shares"}) == without(local, {"shares"})


def test_the_pipelines_are_those_of_the_stack(services: dict[str, ServiceSpec]) -> None:
    for name in ("airflow-scheduler", "airflow-dag-processor", "landing-init"):
        assert services[name].variables["DELTAWORKS_PIPELINES"] == "", "all, as with `make up`"


def without(mapping: Any, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}
