"""Checks prerequisites before the stack starts, and names what to install."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from deltaworks.build.toolchain import JavaRuntime, find_java, find_maven
from deltaworks.errors import ConfigError
from sandbox.doctor import RECOMMENDED_MEMORY_BYTES, SUPPORTED_PYTHON

_PACKAGES = ("airflow", "pyspark", "moto", "supervisor")


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The result of the checks. Warnings do not prevent the start."""

    python: str
    java: JavaRuntime
    mvn: Path | None
    memory_available_bytes: int
    warnings: tuple[str, ...]


def preflight(*, need_maven: bool = True) -> PreflightReport:
    """Checks all prerequisites. Changes nothing; takes about half a second, because it starts Java.

    Raises:
        ConfigError: PYTHON_UNSUPPORTED, PACKAGE_MISSING, JAVA_MISSING, JAVA_TOO_OLD or MAVEN_MISSING.
    """
    _check_python()
    _check_packages()
    java = find_java()
    mvn = find_maven(required=need_maven)
    available = psutil.virtual_memory().available
    warnings: tuple[str, ...] = ()
    if available < RECOMMENDED_MEMORY_BYTES:
        warnings = (
            f"Only {available / 2**30:.1f} GiB of memory are free; the stack with two streams wants about "
            f"{RECOMMENDED_MEMORY_BYTES / 2**30:.0f} GiB.",
        )
    python = ".".join(map(str, sys.version_info[:3]))
    return PreflightReport(python, java, mvn, available, warnings)


def _check_python() -> None:
    if sys.version_info[:2] != SUPPORTED_PYTHON:
        supported = ".".join(map(str, SUPPORTED_PYTHON))
        raise ConfigError(
            "PYTHON_UNSUPPORTED",
            f"This is Python {sys.version_info[0]}.{sys.version_info[1]}; Deltaworks runs on {supported}.",
            hint=f"Create the environment with Python {supported}: uv venv --python {supported}.",
        )


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError("PACKAGE_MISSING", f"Not installed in {sys.prefix}: {', '.join(missing)}.")
