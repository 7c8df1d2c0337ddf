"""A Compose file is read as Compose merges it: anchors, `extends`, files of variables, profiles, secrets, durations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.containers.compose_file import read_compose, seconds
from tests.integration.containers.interpolation import ComposeFileError
from tests.integration.containers.specs import Condition, MountSpec, ProjectSpec, PublishedPort
from tests.integration.containers.variable_files import read_variables

ROOT = Path(__file__).resolve().parents[4]


def project(folder: Path, text: str, *, profiles: tuple[str, ...] = (), **shell: str) -> ProjectSpec:
    (folder / "compose.yaml").write_text(text)
    return read_compose(folder / "compose.yaml", shell=shell, profiles=profiles)


def test_a_service_takes_over_what_it_merges_and_replaces_what_it_says_itself(tmp_path: Path) -> None:
    text = """
    x-base: &base {image: one, environment: &variables {A: "1"}}
    x-plain: &plain {entrypoint: ["/init", "--"], image: two}
    services:
      merged: {<<: [*base, *plain], environment: {<<: *variables, B: "2"}, command: run "one word"}
    """

    service = project(tmp_path, text).services["merged"]

    assert (service.image, service.entrypoint, service.command) == ("one", ("/init", "--"), ("run", "one word"))
    assert service.variables == {"A": "1", "B": "2"}


def test_an_extending_service_merges_mappings_joins_lists_and_replaces_commands(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        'services: {base: {image: "${NAME:-x}", command: [a, b], environment: {A: "1"}, ports: ["1:1"]}}'
    )
    text = """
    services:
      one: {extends: {file: base.yaml, service: base}, command: [c], environment: {B: "2"}, ports: ["2:2"]}
      two: {extends: one, image: own}
    """

    services = project(tmp_path, text, NAME="base").services

    assert (services["one"].image, services["two"].image) == ("base", "own")
    for service in services.values():
        assert service.command == ("c",)
        assert service.variables == {"A": "1", "B": "2"}
        assert [port.port for port in service.ports] == [1, 2]


def test_variables_come_from_the_shell_then_dotenv_then_defaults(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TAG=dotenv\nOTHER=dotenv\n")
    text = 'services: {a: {image: "x:${TAG:-default}-${OTHER:-default}-${THIRD:-default}"}}'

    assert project(tmp_path, text, TAG="shell").services["a"].image == "x:shell-dotenv-default"


def test_the_environment_goes_over_the_files_and_later_files_over_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "one.env").write_text("A=one\nB=one\nC=one\n")
    (tmp_path / "two.env").write_text("B=two\nC=two\n")
    text = """
    services:
      a:
        image: x
        env_file: [one.env, {path: two.env}, {path: absent.env, required: false}]
        environment: {C: own, D: true, FROM_SHELL: , ABSENT: }
    """

    variables = project(tmp_path, text, FROM_SHELL="shell").services["a"].variables

    assert variables == {"A": "one", "B": "two", "C": "own", "D": "true", "FROM_SHELL": "shell"}


def test_a_file_of_variables_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ComposeFileError, match=r"docker/secrets/x\.env not found"):
        project(tmp_path, "services: {a: {image: x, env_file: docker/secrets/x.env}}")


def test_services_of_other_profiles_are_left_out_and_nothing_may_wait_for_them(tmp_path: Path) -> None:
    text = """
    services:
      a: {image: x}
      b: {image: x, profiles: [local], depends_on: [a]}
    """

    assert set(project(tmp_path, text).services) == {"a"}
    assert set(project(tmp_path, text, profiles=("local",)).services) == {"a", "b"}
    with pytest.raises(ComposeFileError, match="depends on undefined service b"):
        project(tmp_path, text.replace("a: {image: x}", "a: {image: x, depends_on: [b]}"))


def test_a_need_that_is_not_required_is_none_where_its_profile_is_off(tmp_path: Path) -> None:
    text = """
    services:
      a: {image: x, depends_on: {b: {condition: service_healthy, required: false}}}
      b: {image: x, profiles: [local]}
    """

    assert project(tmp_path, text).services["a"].needs == {}
    assert project(tmp_path, text, profiles=("local",)).services["a"].needs == {"b": Condition.HEALTHY}


def test_needs_have_conditions_and_everything_starts_behind_what_it_needs(tmp_path: Path) -> None:
    text = """
    services:
      c: {image: x, depends_on: {b: {condition: service_completed_successfully}, a: {condition: service_healthy}}}
      b: {image: x, depends_on: [a]}
      a: {image: x}
    """

    whole = project(tmp_path, text)

    assert whole.services["c"].needs == {"b": Condition.COMPLETED, "a": Condition.HEALTHY}
    assert whole.services["b"].needs == {"a": Condition.STARTED}
    assert [service.name for service in whole.start_order()] == ["a", "b", "c"]


def test_volumes_secrets_and_ports_say_what_goes_where(tmp_path: Path) -> None:
    text = """
    services:
      a:
        image: x
        volumes: ["data:/var/data", "./here:/there:ro"]
        secrets: [token, {source: token, target: /etc/token}]
        ports: ["${BIND:-127.0.0.1}:8080:80", "9:9/tcp"]
    volumes: {data: }
    secrets: {token: {file: token.txt}}
    """

    service = project(tmp_path, text).services["a"]

    token, here = str(tmp_path / "token.txt"), str(tmp_path / "here")
    assert service.mounts == (
        MountSpec(source="data", target="/var/data", is_volume=True),
        MountSpec(source=here, target="/there", is_volume=False, read_only=True),
        MountSpec(source=token, target="/run/secrets/token", is_volume=False, read_only=True),
        MountSpec(source=token, target="/etc/token", is_volume=False, read_only=True),
    )
    assert service.ports == (
        PublishedPort(address="127.0.0.1", port=8080, container_port=80),
        PublishedPort(address="0.0.0.0", port=9, container_port=9),
    )


def test_a_health_check_has_dockers_defaults(tmp_path: Path) -> None:
    text = """
    services:
      plain: {image: x, healthcheck: {test: [CMD, check, me]}}
      shell: {image: x, healthcheck: {test: 'test "$$A"', interval: 1m30s, timeout: 5s, retries: 12, start_period: 2m}}
      off: {image: x, healthcheck: {disable: true}}
    """

    services = project(tmp_path, text).services

    plain, shell = services["plain"].health_check, services["shell"].health_check
    assert plain is not None
    assert plain.command == ("check", "me")
    assert (plain.interval_seconds, plain.timeout_seconds, plain.retries, plain.start_period_seconds) == (30, 30, 3, 0)
    assert shell is not None
    assert shell.command == ("/bin/sh", "-c", 'test "$A"')
    assert (shell.interval_seconds, shell.timeout_seconds, shell.retries, shell.start_period_seconds) == (
        90,
        5,
        12,
        120,
    )
    assert services["off"].health_check is None


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ("{image: x, privileged: true}", "privileged is not read here"),
        ("{image: x, restart: sometimes}", "invalid restart policy"),
        ("{image: x, volumes: [data:/x]}", "undefined volume data"),
        ("{image: x, secrets: [token]}", "undefined secret token"),
        ("{image: x, ports: [one]}", "no .*port"),
        ("{image: x, healthcheck: {test: [RUN, x]}}", "begins with CMD"),
        ("{image: x, healthcheck: {test: [CMD, x], interval: soon}}", "no duration"),
        ("{extends: nowhere}", "no service nowhere"),
    ],
)
def test_what_is_not_obeyed_is_refused(tmp_path: Path, service: str, message: str) -> None:
    with pytest.raises(ComposeFileError, match=message):
        project(tmp_path, f"services: {{a: {service}}}")


@pytest.mark.parametrize(("text", "length"), [("30s", 30), ("1m30s", 90), ("2h", 7200), ("250ms", 0.25), ("1.5s", 1.5)])
def test_a_duration_is_that_of_compose(text: str, length: float) -> None:
    assert seconds(text) == length


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=value", "value"),
        ("A = spaced ", "spaced"),
        ("export A=value", "value"),
        ("A=", ""),
        ("A=value # comment", "value"),
        ("A=value# none", "value# none"),
        ("A=$SHELL_SET", "shell"),
        ("A='$SHELL_SET # none' # comment", "$SHELL_SET # none"),
        ('A="$SHELL_SET # none" # comment', "shell # none"),
        (r"A='Let\'s go!'", "Let's go!"),
        (r'A="{\"hello\": \"json\"}"', '{"hello": "json"}'),
        (r'A="a\tb\nc"', "a\tb\nc"),
        (r"A='a\tb'", r"a\tb"),
        ('A={"host": "x", "port": 1}', '{"host": "x", "port": 1}'),
        ("A=a=b=c", "a=b=c"),
        ("BEFORE=1\nA=${BEFORE}2", "12"),
    ],
)
def test_a_line_of_variables_gives_what_compose_documents(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / "x.env").write_text(f"# comment\n\n{line}\n")

    assert read_variables(tmp_path / "x.env", {"SHELL_SET": "shell"})["A"] == value


@pytest.mark.parametrize("line", ["A='open", 'A="open', "1A=x", "no name=x"])
def test_a_line_that_is_no_variable_is_refused_with_its_number_and_without_its_value(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.env").write_text(f"OK=1\n{line}\n")

    with pytest.raises(ComposeFileError, match=r"x\.env:2:") as caught:
        read_variables(tmp_path / "x.env", {})
    assert "open" not in str(caught.value)
