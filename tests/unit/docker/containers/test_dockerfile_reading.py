"""A Dockerfile is parsed into stages, and .dockerignore selects the build context."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from tests.integration.containers.dockerfile import (
    DockerfileError,
    build_context,
    expand,
    is_ignored,
    read_copy,
    read_dockerfile,
)

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
