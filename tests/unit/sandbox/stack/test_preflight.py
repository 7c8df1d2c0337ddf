"""Missing programs of a machine are named, with the package to install."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from deltaworks.errors import ConfigError
from sandbox.stack import preflight as module
from sandbox.stack.preflight import find_java, find_maven, preflight


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one empty folder on it, and no JAVA_HOME."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def _install(folder: Path, name: str, script: str) -> None:
    command = folder / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def _java_script(version: str) -> str:
    return f"echo '    java.home = /opt/java' >&2; echo '    java.version = {version}' >&2"


def test_a_machine_without_java_is_told_what_to_install(empty_machine: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        preflight()

    assert caught.value.condition == "JAVA_MISSING"
    assert "openjdk-17" in caught.value.hint


def test_a_java_home_without_java_is_named(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(empty_machine, "java", _java_script("17.0.1"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere/jdk")

    with pytest.raises(ConfigError) as caught:
        find_java()

    assert caught.value.condition == "JAVA_MISSING"
    assert "/nowhere/jdk" in caught.value.message


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_old_java_is_refused(empty_machine: Path, version: str) -> None:
    _install(empty_machine, "java", _java_script(version))

    with pytest.raises(ConfigError) as caught:
        find_java()

    assert caught.value.condition == "JAVA_TOO_OLD"
    assert version in caught.value.message


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1"])
def test_a_java_new_enough_is_taken_with_its_home(empty_machine: Path, version: str) -> None:
    _install(empty_machine, "java", _java_script(version))

    found = find_java()

    assert (found.home, found.version) == (Path("/opt/java"), version)


def test_a_command_that_only_pretends_to_be_java_is_refused(empty_machine: Path) -> None:
    _install(empty_machine, "java", "echo 'install Java first'; exit 1")

    with pytest.raises(ConfigError, match="JAVA_MISSING"):
        find_java()


def test_a_machine_without_maven_is_told_so_unless_it_is_not_needed(empty_machine: Path) -> None:
    _install(empty_machine, "java", _java_script("17.0.1"))

    with pytest.raises(ConfigError) as caught:
        preflight()

    assert caught.value.condition == "MAVEN_MISSING"
    assert find_maven(required=False) is None
    assert preflight(need_maven=False).mvn is None


def test_another_python_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUPPORTED_PYTHON", (3, 99))

    with pytest.raises(ConfigError) as caught:
        preflight()

    assert caught.value.condition == "PYTHON_UNSUPPORTED"
    assert "3.99" in caught.value.message


def test_little_memory_is_a_warning_only(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(empty_machine, "java", _java_script("17.0.1"))
    available = psutil.virtual_memory().available

    monkeypatch.setattr(module, "RECOMMENDED_MEMORY_BYTES", available * 2)
    short = preflight(need_maven=False)
    monkeypatch.setattr(module, "RECOMMENDED_MEMORY_BYTES", 1)
    ample = preflight(need_maven=False)

    assert "GiB" in short.warnings[0]
    assert ample.warnings == ()
