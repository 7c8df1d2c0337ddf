"""Locates Java and Maven on this machine, with installation hints if they are missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError

MIN_JAVA = 17


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java installation and its version."""

    home: Path
    version: str


def find_java() -> JavaRuntime:
    """Finds Java in JAVA_HOME, or the first on the PATH.

    Raises:
        ConfigError: JAVA_MISSING, or JAVA_TOO_OLD if it is older than Java 17.
    """
    install = f"Install a Java {MIN_JAVA} JDK (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
    configured = os.environ.get("JAVA_HOME")
    command = Path(configured, "bin", "java") if configured else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        problem = f"JAVA_HOME is {configured}, which has no bin/java" if configured else "No java on the PATH"
        raise ConfigError("JAVA_MISSING", f"{problem}.", hint=f"{install}, or set JAVA_HOME.")
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
        result = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = (line.split(" = ", 1) for line in result.stderr.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, value in lines}


def find_maven(*, required: bool = True) -> Path | None:
    """Finds Maven's `mvn` on the PATH; None if it is missing and not required.

    Raises:
        ConfigError: MAVEN_MISSING.
    """
    command = shutil.which("mvn")
    if command is None and required:
        raise ConfigError(
            "MAVEN_MISSING", "No mvn on the PATH; it resolves the jars and compiles the Java classes, once."
        )
    return Path(command) if command else None
