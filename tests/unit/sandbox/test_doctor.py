"""What a machine lacks is listed with the command that installs it, before anything of ours is installed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import doctor
from sandbox.doctor import ENVIRONMENT_LOCKS, Check, check_machine, install_command, is_ready
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[3]


def _machine(*commands: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in commands else None


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without environment and jars, on a machine without any command."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name in doctor._PROXIES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("installer", "command"),
    [
        ("apt-get", "sudo apt-get install openjdk-17-jdk-headless"),
        ("dnf", "sudo dnf install java-17-openjdk-devel"),
        ("pacman", "sudo pacman -S jdk17-openjdk"),
        ("apk", "sudo apk add openjdk17"),
        ("brew", "brew install openjdk@17"),
        ("port", "install java"),
    ],
)
def test_what_is_missing_comes_with_the_command_of_the_machine_s_own_installer(
    bare: Path, installer: str, command: str
) -> None:
    checks = _by_name(check_machine(bare, find_command=_machine(installer, "make")))

    assert (checks["Java"].state, checks["Java"].next_step) == ("missing", command)
    assert checks["Maven"].state == "missing"
    assert not is_ready(list(checks.values()))


def test_an_installer_without_the_package_is_not_named() -> None:
    assert install_command("python", which=_machine("pacman")) == "install python"
    assert install_command("python", which=_machine("pacman", "brew")) == "brew install python@3.11"


def test_a_java_that_cannot_compile_is_no_use_until_the_jars_are_built(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = bare / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '    java.home = {bare}' >&2; echo '    java.version = 17.0.9' >&2\n")
    java.chmod(0o755)

    assert "no javac" in _by_name(check_machine(bare, find_command=_machine("make")))["Java"].detail

    jars = bare / "include" / "jars" / "target" / "jars"
    jars.mkdir(parents=True)
    (jars / "delta.jar").touch()
    checks = _by_name(check_machine(bare, find_command=_machine("make")))
    assert [checks[name].state for name in ("Java", "Maven", "jars")] == ["ok", "ok", "ok"]


@pytest.mark.parametrize("name", ENVIRONMENT_LOCKS)
def test_an_environment_older_than_a_lock_file_is_to_be_made_again(bare: Path, name: str) -> None:
    stamp, lock = bare / ".venv" / ".stamp", bare / name
    stamp.parent.mkdir()
    stamp.touch()
    lock.touch()
    os.utime(stamp, (1_000, 1_000))

    check = _by_name(check_machine(bare, find_command=_machine()))["environment"]

    assert (check.state, check.detail, check.next_step) == ("warning", f"older than {name}", "make env")


def test_a_machine_whose_name_has_no_address_cannot_start_spark(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(name: str) -> str:
        raise socket.gaierror(name)

    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "gethostbyname", unresolved)

    check = _by_name(check_machine(bare, find_command=_machine()))["host name"]

    assert (check.state, check.next_step) == ("missing", 'echo "127.0.0.1 box" | sudo tee -a /etc/hosts')


def test_a_proxy_that_would_take_requests_to_this_machine_is_a_warning(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    check = _by_name(check_machine(bare, find_command=_machine()))["proxy"]
    assert (check.state, "127.0.0.1" in check.next_step) == ("warning", True)

    monkeypatch.setenv("NO_PROXY", "localhost, 127.0.0.1")
    assert _by_name(check_machine(bare, find_command=_machine()))["proxy"].state == "ok"


def test_it_runs_with_nothing_installed_but_python() -> None:
    # -S leaves out site-packages, -I the folder and the variables of whoever calls.
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'include')!r}); from sandbox import doctor; doctor.main()"
    answer = run_process([sys.executable, "-I", "-S", "-c", program], timeout=120)

    assert answer.stderr == ""
    assert answer.stdout.splitlines()[0].split() == ["what", "state", "detail", "next"]
    assert "Java" in answer.stdout
