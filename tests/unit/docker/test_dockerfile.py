"""The Dockerfile builds the environment `make env jars` builds: same versions, same lock, same layout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continued lines joined."""

    name: str
    text: str


def instructions() -> list[Instruction]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def texts(name: str) -> list[str]:
    return [each.text for each in instructions() if each.name == name]


def pinned(package: str, file: str = "requirements.txt") -> str:
    found = re.search(rf"^{package}(?:\[\w+\])?==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    assert found is not None
    return found[1].rstrip(" \\")


def test_the_base_is_the_airflow_that_is_locked() -> None:
    first = texts("FROM")[0].split()[0]

    assert first.partition("@")[0] == f"apache/airflow:{pinned('apache-airflow')}-python3.11"
    assert pinned("apache-airflow") == pinned("apache-airflow", "requirements.lock")


def test_every_other_stage_stands_on_the_first() -> None:
    stages = texts("FROM")

    assert [stage.split()[0] for stage in stages[1:]] == ["environment", "environment"]
    assert stages[0].endswith("AS environment")


def test_uv_is_installed_by_the_hashes_of_its_own_lock_as_the_makefile_does() -> None:
    lock = (ROOT / "requirements-uv.lock").read_text()
    install = next(text for text in texts("RUN") if "pip install" in text)

    assert pinned("uv") == pinned("uv", "requirements-uv.lock") == pinned("uv", "requirements.lock")
    assert hashes_of_uv(lock) == hashes_of_uv((ROOT / "requirements.lock").read_text())
    for recipe in (install, (ROOT / "Makefile").read_text()):
        assert re.search(r"pip install[^&@]*--require-hashes[^&@]*requirements-uv.lock", recipe)
        assert not re.search(r"pip install[^&@]*uv==", recipe)


def hashes_of_uv(lock: str) -> set[str]:
    stanza = re.search(r"^uv==\S+ \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock, re.MULTILINE)
    assert stanza is not None
    return set(re.findall(r"sha256:\w{64}", stanza[1]))


def test_the_environment_is_installed_as_make_env_does_it() -> None:
    install = next(text for text in texts("RUN") if "uv pip sync" in text)
    makefile = (ROOT / "Makefile").read_text()

    for words in ("uv pip sync --quiet", "--require-hashes", "requirements.lock"):
        assert words in install.replace("--no-cache ", "")
        assert words in makefile
    assert "/opt/deltaworks/locks/docker.lock" in install


def test_the_lock_of_the_containers_has_what_it_is_made_from_and_hashes() -> None:
    asked = set(re.findall(r"^([\w-]+==\S+)$", (ROOT / "docker" / "requirements.in").read_text(), re.MULTILINE))
    lock = (ROOT / "docker" / "requirements.lock").read_text()

    locked = set(re.findall(r"^([\w-]+==\S+) \\$", lock, re.MULTILINE))

    assert asked
    assert asked <= locked
    assert lock.count("--hash=sha256:") >= len(locked)
    mine = {name.split("==")[0] for name in locked}
    theirs = set(re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert mine & theirs == set(), "the two locks would fight over a version"


def test_the_jars_are_made_by_the_command_of_the_makefile() -> None:
    assert "python -m deltaworks.build.jars" in texts("RUN")
    assert "-m deltaworks.build.jars" in (ROOT / "Makefile").read_text()


def test_the_digests_of_the_jars_are_there_when_they_are_resolved() -> None:
    words = [text for name, text in ((each.name, each.text) for each in instructions()) if name in {"COPY", "RUN"}]

    lock = next(at for at, text in enumerate(words) if "include/jars/jars.lock" in text)

    assert lock < words.index("python -m deltaworks.build.jars")


def test_the_lakes_server_is_the_version_of_the_pom() -> None:
    version = re.search(r"<s3proxy.version>(.*)</s3proxy.version>", (ROOT / "include/jars/pom.xml").read_text())

    assert version is not None
    assert f"s3proxy-{version[1]}-jar-with-dependencies.jar" in (ROOT / "docker" / "s3proxy.sh").read_text()


@pytest.mark.parametrize("folder", ["dags", "plugins", "include", "spark_jobs"])
def test_the_layout_is_the_one_airflow_expects(folder: str) -> None:
    assert any(text.endswith(f" {folder} /opt/airflow/{folder}") for text in texts("COPY"))
    assert (ROOT / folder).is_dir()


def test_the_variables_say_where_things_are() -> None:
    variables = dict(pair.split("=", 1) for text in texts("ENV") for pair in text.split())

    assert variables["PYTHONPATH"] == "/opt/airflow/include"
    assert variables["DELTAWORKS_PROJECT"] == "/opt/airflow"
    assert variables["TZ"] == "UTC"
    assert variables["PYSPARK_PYTHON"].startswith("/opt/deltaworks/venv/")
    assert variables["PATH"].startswith('"/opt/deltaworks/venv/bin:')


def test_java_is_17_and_the_image_does_not_run_as_root() -> None:
    assert any("openjdk-17-jre-headless" in text for text in texts("RUN"))
    stages: list[list[str]] = []
    for each in instructions():
        if each.name == "FROM":
            stages.append([])
        elif each.name == "USER":
            stages[-1].append(each.text)

    for users in stages:
        assert not users or users[-1] == "50000"


def test_everything_that_is_copied_is_there_and_goes_to_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}

    assert "*" in ignored, "nothing goes to the build unless it is named"
    for text in texts("COPY"):
        words = [word for word in text.split() if not word.startswith("--")]
        if "--from=" in text:
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed or source.split("/")[0] in allowed, source


@pytest.mark.parametrize("name", ["Dockerfile", "docker/kubernetes.Dockerfile"])
def test_hadolint_finds_nothing(name: str) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")

    done = subprocess.run([program, ROOT / name], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
