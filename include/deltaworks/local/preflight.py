"""What the machine must have before the stack starts; each thing missing is said with what to install."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from deltaworks.errors import ConfigError

MIN_JAVA = 17
SUPPORTED_PYTHON = (3, 11)
WANTED_MEMORY_BYTES = 5 << 30
_PACKAGES = ("airflow", "pyspark", "moto", "supervisor")


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that was found and asked for its version."""

    home: Path
    version: str


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What was found; warnings do not keep the stack from starting."""

    python: str
    java: JavaRuntime
    mvn: Path | None
    memory_available_bytes: int
    warnings: tuple[str, ...]


def preflight(*, need_maven: bool = True) -> PreflightReport:
    """Look for everything the stack needs. Changes nothing; takes about half a second (Java is asked).

    Raises:
        ConfigError: PYTHON_UNSUPPORTED, PACKAGE_MISSING, JAVA_MISSING, JAVA_TOO_OLD or MAVEN_MISSING.
    """
    _check_python()
    _check_packages()
    java = find_java()
    mvn = find_maven(required=need_maven)
    available = psutil.virtual_memory().available
    warnings: tuple[str, ...] = ()
    if available < WANTED_MEMORY_BYTES:
        warnings = (
            f"Only {available / 2**30:.1f} GiB of memory are free; the stack with two streams wants about "
            f"{WANTED_MEMORY_BYTES / 2**30:.0f} GiB.",
        )
    python = ".".join(map(str, sys.version_info[:3]))
    return PreflightReport(python, java, mvn, available, warnings)


def _check_python() -> None:
    if sys.version_info[:2] != SUPPORTED_PYTHON:
        wanted = ".".join(map(str, SUPPORTED_PYTHON))
        raise ConfigError(
            "PYTHON_UNSUPPORTED",
            f"This is Python {sys.version_info[0]}.{sys.version_info[1]}; Deltaworks runs on {wanted}.",
            hint=f"Create the environment with Python {wanted}: uv venv --python {wanted}.",
        )


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "PACKAGE_MISSING",
            f"Not installed in {sys.prefix}: {', '.join(missing)}.",
            hint="Install the lock file: uv pip sync requirements.lock.",
        )


def find_java() -> JavaRuntime:
    """The Java of JAVA_HOME, or the first on the PATH.

    Raises:
        ConfigError: JAVA_MISSING, or JAVA_TOO_OLD when it is older than Java 17.
    """
    install = f"Install a Java {MIN_JAVA} JDK (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
    configured = os.environ.get("JAVA_HOME")
    command = Path(configured, "bin", "java") if configured else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        where = f"JAVA_HOME is {configured}, which has no bin/java" if configured else "No java on the PATH"
        raise ConfigError("JAVA_MISSING", f"{where}.", hint=f"{install}, or set JAVA_HOME.")
    properties = _java_properties(Path(command))
    version = properties.get("java.version", "")
    major = re.match(r"(?:1\.)?(\d+)", version)
    if major is None or "java.home" not in properties:
        raise ConfigError("JAVA_MISSING", f"{command} does not run as Java.", hint=f"{install}.")
    if int(major[1]) < MIN_JAVA:
        raise ConfigError(
            "JAVA_TOO_OLD",
            f"{command} is Java {version}; Spark 4.2 needs {MIN_JAVA} or newer.",
            hint=f"{install} and point JAVA_HOME at it.",
        )
    return JavaRuntime(Path(properties["java.home"]), version)


def _java_properties(command: Path) -> dict[str, str]:
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = (line.split(" = ", 1) for line in answer.stderr.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, value in lines}


def find_maven(*, required: bool = True) -> Path | None:
    """Maven's `mvn` on the PATH; None where it is missing and not required.

    Raises:
        ConfigError: MAVEN_MISSING.
    """
    found = shutil.which("mvn")
    if found is None and required:
        raise ConfigError(
            "MAVEN_MISSING",
            "No mvn on the PATH; it resolves the jars and compiles the Java classes, once.",
            hint="Install Maven (Debian, Ubuntu: apt-get install maven).",
        )
    return Path(found) if found else None
