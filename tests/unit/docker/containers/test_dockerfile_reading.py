"""Containers of tests: the Dockerfile and Compose's variables are read as Docker does, and health is judged alike."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
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
from tests.integration.containers.specs import HealthCheckSpec

ROOT = Path(__file__).resolve().parents[4]


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
