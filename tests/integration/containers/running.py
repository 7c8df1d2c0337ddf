"""Runs this checkout's Compose project in containers of this machine, set up as docs/how-to/deploy.md describes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.containers.compose_file import read_compose
from tests.integration.containers.composition import Composition
from tests.integration.containers.image_build import ImageBuilder
from tests.integration.containers.namespace_host import NamespaceHost, namespace_host
from tests.integration.containers.specs import ProjectSpec
from tests.integration.containers.variable_files import read_variables
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[3]
_FILES = ("Dockerfile", "docker-compose.yaml", ".dockerignore", "requirements.lock", "requirements-sandbox.lock")
_FOLDERS = ("dags", "docker", "include", "plugins", "spark_jobs")
_NOT_CHECKED_OUT = shutil.ignore_patterns("target", "secrets", "__pycache__", ".mypy_cache")
#: The jars resolved by `make jars`; in a real build Maven downloads them in the stage with this name.
FETCHED = {"jars": {"/opt/airflow/include/jars/target": ROOT / "include" / "jars" / "target"}}


@dataclass(frozen=True, slots=True)
class RunningProject:
    """A running project, its host and its source checkout."""

    host: NamespaceHost
    spec: ProjectSpec
    composition: Composition

    def secrets(self) -> dict[str, str]:
        """Secrets made by `make secrets`, by variable."""
        folder = self.spec.folder / "docker" / "secrets"
        return {name: value for path in folder.iterdir() for name, value in read_variables(path, {}).items()}

    def on_host(self, *words: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host that publishes the containers' ports."""
        return run_process(self.host.command(words), env=variables, stdin=subprocess.DEVNULL)


def check_out(folder: Path) -> Path:
    """Creates a folder as a user has it after a checkout and `make secrets`."""
    folder.mkdir(parents=True)
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=_NOT_CHECKED_OUT)
    subprocess.run(
        [sys.executable, folder / "docker" / "make_secrets.py"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return folder


@contextmanager
def running_project(
    folder: Path,
    *,
    shell: Mapping[str, str],
    profiles: Collection[str],
    choose: Callable[[ProjectSpec], ProjectSpec] = lambda spec: spec,
) -> Iterator[RunningProject]:
    """Runs the project of `folder / "checkout"` inside the block and removes it completely afterwards.

    Args:
        choose: selects the services to run.
    """
    with namespace_host() as host:
        builder = ImageBuilder(host, folder / "images", fetched=FETCHED)
        whole = read_compose(folder / "checkout" / "docker-compose.yaml", shell=shell, profiles=profiles)
        spec = choose(whole)
        composition = Composition(host, spec, folder / "state", builder)
        composition.up()
        try:
            yield RunningProject(host, spec, composition)
        finally:
            composition.start_nothing_more()
