"""Containers of tests: Compose files and the Dockerfile are read, and health is judged, as by Docker."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.integration.containers.compose_file import read_compose, seconds
from tests.integration.containers.dockerfile import (
    DockerfileError,
    build_context,
    expand,
    is_ignored,
    read_copy,
    read_dockerfile,
)
from tests.integration.containers.health import Health, HealthState, Probe, judge, pause_seconds, watch
from tests.integration.containers.interpolation import ComposeFileError, interpolate, interpolate_tree
from tests.integration.containers.specs import Condition, HealthCheckSpec, MountSpec, ProjectSpec, PublishedPort
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


def test_stages_have_their_base_their_name_and_whole_instructions() -> None:
    text = 'FROM base:1 AS first\n# note\nRUN one \\\n    && two\nFROM first\nCMD ["a b", "c"]\n'

    first, second = read_dockerfile(text)

    assert (first.base, first.name, second.base, second.name) == ("base:1", "first", "first", "1")
    assert [(each.name, each.text, each.line) for each in first.instructions] == [("RUN", "one && two", 3)]
    assert second.instructions[0].words() == ("a b", "c")


def test_an_instruction_that_is_not_obeyed_is_refused() -> None:
    with pytest.raises(DockerfileError, match="line 2: VOLUME is not read here"):
        read_dockerfile("FROM x\nVOLUME /data\n")


def test_a_copy_names_its_stage_its_owner_its_sources_and_its_target() -> None:
    (stage,) = read_dockerfile("FROM x\nCOPY --chown=airflow:0 --from=jars /a /b /c/\n")

    copy = read_copy(stage.instructions[0])

    assert (copy.sources, copy.target, copy.stage, copy.owner) == (("/a", "/b"), "/c/", "jars", "airflow:0")
    with pytest.raises(DockerfileError, match="not read here"):
        read_copy(read_dockerfile("FROM x\nCOPY --chmod=700 a b\n")[0].instructions[0])


def test_variables_are_put_into_variables() -> None:
    assert expand("/venv/bin:${PATH}:$HOME:$NONE", {"PATH": "/bin", "HOME": "/root"}) == "/venv/bin:/bin:/root:"


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("secret.env", True),
        ("docker/secrets/lake.env", True),
        ("docker/init.sh", False),
        ("include/deep/module.py", False),
        ("include/deep/__pycache__/module.pyc", True),
        ("include/jars/target/jars/a.jar", True),
        ("include/jars/pom.xml", False),
    ],
)
def test_the_last_rule_that_fits_a_path_counts(path: str, ignored: bool) -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()

    assert is_ignored(PurePosixPath(path), [rule for rule in rules if rule and not rule.startswith("#")]) is ignored


def test_no_secret_goes_to_the_build(tmp_path: Path) -> None:
    for name in ("docker/secrets/lake.env", "docker/init.sh", "include/a.py", ".git/config", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".dockerignore").write_text((ROOT / ".dockerignore").read_text())

    assert {str(path) for path in build_context(tmp_path)} == {"docker/init.sh", "include/a.py"}


VARIABLES = {"SET": "value", "EMPTY": "", "OTHER": "other", "_x1": "underscore"}
NAMES = st.sampled_from(["SET", "EMPTY", "UNSET", "OTHER", "_x1"])
LITERALS = st.text(alphabet="abc .:/-_=,?+1", max_size=6)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$SET", "value"),
        ("${SET}", "value"),
        ("$SET/x", "value/x"),
        ("$UNSET", ""),
        ("${UNSET}", ""),
        ("${UNSET:-default}", "default"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY-default}", ""),
        ("${UNSET-default}", "default"),
        ("${SET:?error}", "value"),
        ("${EMPTY?error}", ""),
        ("${SET:+replacement}", "replacement"),
        ("${EMPTY:+replacement}", ""),
        ("${EMPTY+replacement}", "replacement"),
        ("${UNSET+replacement}", ""),
        ("${UNSET:-${OTHER}}", "other"),
        ("${UNSET:-${EMPTY:-deep}}", "deep"),
        ("${UNSET:-$OTHER}", "other"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:b/c-d}:7077", "a:b/c-d:7077"),
        ("$$SET", "$SET"),
        ("$${SET}", "${SET}"),
        ("$$(( $$(date) ))", "$(( $(date) ))"),
        ("$$$SET", "$value"),
        ("5 $ and $1", "5 $ and $1"),
        ("${UNSET:-$$x}", "$x"),
    ],
)
def test_a_form_of_the_specification_gives_what_it_says(text: str, result: str) -> None:
    assert interpolate(text, VARIABLES) == result


@pytest.mark.parametrize("text", ["${UNSET:?say who}", "${EMPTY:?say who}", "${UNSET?say who}"])
def test_a_required_variable_that_is_missing_ends_it_with_its_message(text: str) -> None:
    with pytest.raises(ComposeFileError, match=r"required variable .* is missing a value: say who"):
        interpolate(text, VARIABLES)


@pytest.mark.parametrize("text", ["${SET", "${UNSET:-${OTHER}", "${}", "${1x}", "${SET/a/b}", "${SET:0:1}"])
def test_what_compose_has_no_form_for_is_refused(text: str) -> None:
    with pytest.raises(ComposeFileError):
        interpolate(text, VARIABLES)


def test_only_values_have_variables_and_what_is_no_text_stays() -> None:
    tree = {"$SET": ["$SET", 3, True, None, {"a": "${UNSET:-b}"}]}

    assert interpolate_tree(tree, VARIABLES) == {"$SET": ["value", 3, True, None, {"a": "b"}]}


def forms(word: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    braced = st.builds(
        lambda name, sign, inner: f"${{{name}{sign}{inner}}}", NAMES, st.sampled_from([":-", "-", ":+", "+"]), word
    )
    return st.lists(st.one_of(LITERALS, braced, NAMES.map("${{{}}}".format), st.just("$$")), max_size=4).map("".join)


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.recursive(LITERALS, forms, max_leaves=6), min_size=20, max_size=20))
def test_bash_puts_the_same_in(texts: list[str]) -> None:
    script = "\n".join(f'printf "%s\\0" "{text.replace("$$", chr(92) + "$")}"' for text in texts)

    printed = subprocess.run(["bash", "-c", script], env=VARIABLES, capture_output=True, text=True, check=True).stdout

    assert [interpolate(text, VARIABLES) for text in texts] == printed.split("\0")[:-1]


CHECK = HealthCheckSpec(command=("check",), interval_seconds=30, retries=3, start_period_seconds=60)


def after(*probes: tuple[int, float], check: HealthCheckSpec = CHECK) -> HealthState:
    """The state after probes, each an exit status and the age of the container."""
    state = HealthState()
    for status, age in probes:
        state = judge(state, Probe(status, "", 0.1), check=check, age_seconds=age)
    return state


def test_a_container_starts_and_is_healthy_by_its_first_success() -> None:
    assert after().health is Health.STARTING
    assert after((1, 5), (0, 10)).health is Health.HEALTHY


def test_failures_of_the_start_period_do_not_count() -> None:
    assert after(*[(1, age) for age in range(0, 60, 5)]).health is Health.STARTING
    assert after(*[(1, age) for age in range(0, 60, 5)], (1, 60), (1, 90)).health is Health.STARTING
    assert after((1, 60), (1, 90), (1, 120)).health is Health.UNHEALTHY


def test_failures_count_once_something_has_succeeded_even_in_the_start_period() -> None:
    assert after((0, 5), (1, 10), (1, 15), (1, 20)).health is Health.UNHEALTHY


def test_only_failures_in_a_row_count_and_time_outs_are_failures() -> None:
    assert after((0, 90), (1, 120), (-1, 150), (0, 180), (1, 210), (1, 240)).health is Health.HEALTHY
    assert after((0, 90), (-1, 120), (-1, 150), (-1, 180)).health is Health.UNHEALTHY
    assert after((0, 90), (1, 120), (1, 150), (1, 180), (0, 210)).health is Health.HEALTHY


def test_a_starting_container_is_looked_at_more_often() -> None:
    assert pause_seconds(HealthState(), check=CHECK, age_seconds=10) == 5
    assert pause_seconds(HealthState(), check=CHECK, age_seconds=60) == 30
    assert pause_seconds(after((0, 5)), check=CHECK, age_seconds=10) == 30


def test_every_probe_is_reported_until_the_container_ends() -> None:
    now = 0.0
    reports: list[HealthState] = []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return now > 100

    watch(CHECK, probe=lambda: Probe(int(now < 20), "", 0.0), report=reports.append, clock=lambda: now, wait=wait)

    assert [state.health for state in reports] == [Health.STARTING] * 3 + [Health.HEALTHY] * 3
