"""The Dockerfile builds the environment `make env jars` builds: same versions, same lock, same layout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltaworks.testing import present

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
    found = present(re.search(rf"^{package}(?:\[\w+\])?==(\S+)", (ROOT / file).read_text(), re.MULTILINE))
    return found[1].rstrip(" \\")


def test_the_entry_point_is_that_of_the_locked_airflow_and_nothing_else_of_its_image() -> None:
    entry, base = (text.split() for text in texts("FROM")[:2])

    assert entry[0].partition("@")[0] == f"apache/airflow:{pinned('apache-airflow')}-python3.11"
    assert [text for text in texts("COPY") if "--from=airflow" in text] == ["--from=airflow /entrypoint /clean-logs /"]
    assert base[0].partition("@")[0] == "python:3.11-slim-bookworm"
    assert pinned("apache-airflow") == pinned("apache-airflow", "requirements.lock")


def test_every_other_stage_stands_on_the_environment_and_the_product_is_the_last() -> None:
    stages = texts("FROM")

    assert [stage.split()[0] for stage in stages[2:]] == ["environment"] * 3
    assert stages[1].endswith("AS environment")
    assert stages[-1].endswith("AS product")


def test_uv_is_installed_by_the_hashes_of_its_own_lock() -> None:
    lock = (ROOT / "requirements-uv.lock").read_text()

    version = pinned("uv", "requirements-dev.txt")
    assert version == pinned("uv", "requirements-uv.lock") == pinned("uv", "requirements-dev.lock")
    assert hashes_of_uv(lock) == hashes_of_uv((ROOT / "requirements-dev.lock").read_text())
    assert re.search(r"pip install[^&@]*--require-hashes[^&@]*requirements-uv.lock", (ROOT / "Makefile").read_text())


def hashes_of_uv(lock: str) -> set[str]:
    stanza = present(re.search(r"^uv==\S+ \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock, re.MULTILINE))
    return set(re.findall(r"sha256:\w{64}", stanza[1]))


def test_the_product_has_the_first_lock_and_the_local_servers_the_second_too_each_by_hash() -> None:
    locks = [
        re.findall(r"requirements\S*\.lock", stage) for stage in (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]
    ]
    copied_and_installed = {
        "environment": ["requirements.lock"] * 2,
        "local": ["requirements-sandbox.lock"] * 2,
    }

    named = [text.rpartition(" AS ")[2] for text in texts("FROM")]
    assert dict(zip(named, locks, strict=True)) == {name: copied_and_installed.get(name, []) for name in named}
    for install in (text for text in texts("RUN") if "pip install" in text):
        assert re.search(r"--no-deps +--require-hashes +--requirement", install)


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


def test_the_product_has_everything_below_include_but_the_sandbox_and_its_generators() -> None:
    product = (ROOT / "Dockerfile").read_text().partition("AS product")[2]
    tracked = subprocess.run(
        ["git", "ls-files", "include"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    present = {line.split("/")[1] for line in tracked.splitlines()}
    assert {name for name in present if f" include/{name}" not in product} == {"generator", "sandbox"}


@pytest.mark.parametrize("folder", ["dags", "plugins", "include/deltaworks", "spark_jobs"])
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
