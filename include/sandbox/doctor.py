"""Checks prerequisites of `make demo` and `make test` on this machine, and names the commands that install missing
ones.

Needs only Python and the checkout, so `make doctor` works before `make env`. `deltaworks doctor` does the same. Changes
nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deltaworks.build.toolchain import find_java, find_maven
from deltaworks.control.listing import Listing, plain_text
from deltaworks.errors import ConfigError

State = Literal["ok", "missing", "warning"]

SUPPORTED_PYTHON = (3, 11)
#: What `make env` installs.
ENVIRONMENT_LOCKS = ("requirements-uv.lock", "requirements.lock", "requirements-sandbox.lock", "requirements-dev.lock")
#: Memory of the stack with two streams.
RECOMMENDED_MEMORY_BYTES = 5 << 30
#: Space for the Python environment, the jars, and a demo with its tables.
RECOMMENDED_DISK_BYTES = 6 << 30
#: Package names by package manager; the first installed package manager is used.
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "apt-get": {
        "python": "python3.11 python3.11-venv",
        "java": "openjdk-17-jdk-headless",
        "maven": "maven",
        "make": "make",
        "chromium": "chromium",
    },
    "dnf": {
        "python": "python3.11",
        "java": "java-17-openjdk-devel",
        "maven": "maven",
        "make": "make",
        "chromium": "chromium",
    },
    "pacman": {"java": "jdk17-openjdk", "maven": "maven", "make": "make", "chromium": "chromium"},
    "apk": {
        "python": "python3~3.11",
        "java": "openjdk17",
        "maven": "maven",
        "make": "make",
        "chromium": "chromium",
    },
    "brew": {
        "python": "python@3.11",
        "java": "openjdk@17",
        "maven": "maven",
        "make": "make",
        "chromium": "--cask chromium",
    },
}
_INSTALL = {"pacman": "sudo pacman -S", "apk": "sudo apk add", "brew": "brew install"}
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class Check:
    """The result of one check. `next_step` is a command or setting that fixes it; empty if there is nothing to do."""

    name: str
    state: State
    detail: str
    next_step: str = ""


def check_machine(root: Path, *, find_command: Callable[[str], str | None] = shutil.which) -> list[Check]:
    """Runs all checks. Takes about half a second, because it starts Java.

    Args:
        root: the project's folder.
        find_command: returns the path of a command; None if it is not installed.
    """
    checks = [
        _python(find_command),
        _command("make", "GNU make runs every command of the project", find_command),
        _environment(root),
        *_java_and_maven(root, find_command),
        _memory(),
        _disk(root),
        _host_name(),
        _command("chromium", "only the tests of Airflow's forms open a browser", find_command, is_needed=False),
    ]
    return checks + list(_proxy(os.environ))


def is_ready(checks: list[Check]) -> bool:
    """Returns whether no check has state `missing`; warnings are ignored."""
    return all(check.state != "missing" for check in checks)


def install_command(what: str, *, which: Callable[[str], str | None] = shutil.which) -> str:
    """Returns the command that installs a package on this machine; a plain instruction if no package manager has it."""
    for installer, packages in _PACKAGES.items():
        if which(installer) and what in packages:
            return f"{_INSTALL.get(installer, f'sudo {installer} install')} {packages[what]}"
    return f"install {what}"


def _python(which: Callable[[str], str | None]) -> Check:
    supported = ".".join(map(str, SUPPORTED_PYTHON))
    if sys.version_info[:2] == SUPPORTED_PYTHON:
        if importlib.util.find_spec("ensurepip") is None:
            detail = f"{sys.executable} has no ensurepip, without which no environment can be made"
            return Check("Python", "missing", detail, install_command("python", which=which))
        return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    if path := which(f"python{supported}"):
        return Check("Python", "ok", path)
    return Check("Python", "missing", f"no python{supported} on the PATH", install_command("python", which=which))


def _command(name: str, why: str, which: Callable[[str], str | None], *, is_needed: bool = True) -> Check:
    if path := which(name):
        return Check(name, "ok", path)
    state: State = "missing" if is_needed else "warning"
    return Check(name, state, f"not on the PATH: {why}", install_command(name, which=which))


def _environment(root: Path) -> Check:
    stamp = root / ".venv" / ".stamp"
    if not stamp.exists():
        return Check("environment", "warning", "not made yet", "make env")
    for lock in (root / name for name in ENVIRONMENT_LOCKS):
        if lock.exists() and stamp.stat().st_mtime < lock.stat().st_mtime:
            return Check("environment", "warning", f"older than {lock.name}", "make env")
    return Check("environment", "ok", str(root / ".venv"))


def _java_and_maven(root: Path, which: Callable[[str], str | None]) -> Iterator[Check]:
    are_built = any((root / "include" / "jars" / "target" / "jars").glob("*.jar"))
    try:
        java = find_java()
    except ConfigError as error:
        yield Check("Java", "missing", error.message, install_command("java", which=which))
    else:
        if are_built or (java.home / "bin" / "javac").exists():
            yield Check("Java", "ok", f"{java.version} at {java.home}")
        else:
            detail = f"{java.home} has no javac: it is a runtime, and the jars are compiled once"
            yield Check("Java", "missing", detail, install_command("java", which=which))
    maven = find_maven(required=False)
    if maven is None and not are_built:
        yield Check("Maven", "missing", "no mvn on the PATH", install_command("maven", which=which))
    else:
        yield Check("Maven", "ok", str(maven or "not needed: the jars are built"))
    yield Check("jars", "ok", "built") if are_built else Check("jars", "warning", "not built yet", "make jars")


def _memory() -> Check:
    available = _available_memory_bytes()
    if available is None:
        return Check("memory", "ok", "this system does not say how much is free")
    detail = f"{available / 2**30:.1f} GiB are free"
    if available >= RECOMMENDED_MEMORY_BYTES:
        return Check("memory", "ok", detail)
    needed = f"the stack with two streams takes about {RECOMMENDED_MEMORY_BYTES >> 30} GiB"
    return Check("memory", "warning", f"{detail}; {needed}", "end other programs")


def _available_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _disk(root: Path) -> Check:
    free = shutil.disk_usage(root).free
    detail = f"{free / 2**30:.1f} GiB are free in {root}"
    if free >= RECOMMENDED_DISK_BYTES:
        return Check("disk", "ok", detail)
    return Check("disk", "warning", f"{detail}; {RECOMMENDED_DISK_BYTES >> 30} GiB are needed", "make room there")


def _host_name() -> Check:
    """Checks that this machine's host name resolves to an address, without which Spark does not start."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        detail = f"{name} has no address, and Spark does not start without one"
        return Check("host name", "missing", detail, f'echo "127.0.0.1 {name}" | sudo tee -a /etc/hosts')
    return Check("host name", "ok", f"{name} is {address}")


def _proxy(environ: Mapping[str, str]) -> Iterator[Check]:
    """Warns if requests to local servers would go through an HTTP proxy."""
    proxy = next((name for name in _PROXIES if environ.get(name)), None)
    if proxy is None:
        return
    bypassed = {
        host.strip() for name in ("no_proxy", "NO_PROXY") for host in environ.get(name, "").split(",") if host.strip()
    }
    if "*" in bypassed or {"127.0.0.1", "localhost"} <= bypassed:
        yield Check("proxy", "ok", f"{proxy}, and not for this machine")
        return
    detail = f"{proxy} is set, and requests to this machine would go there"
    yield Check("proxy", "warning", detail, "export no_proxy=127.0.0.1,localhost NO_PROXY=127.0.0.1,localhost")


def format_checks(checks: list[Check]) -> Listing:
    """Returns the checks as a listing for the terminal or JSON."""
    listing = Listing(("what", "state", "detail", "next"))
    for check in checks:
        listing.add(check.name, check.state, check.detail, check.next_step)
    return listing


def main() -> int:
    """Prints the checks; returns 1 if something is missing."""
    checks = check_machine(Path(__file__).resolve().parents[2])
    sys.stdout.write(plain_text(format_checks(checks)) + "\n")
    return 0 if is_ready(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
