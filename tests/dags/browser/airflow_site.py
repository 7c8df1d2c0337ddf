"""A real Airflow API server for browser tests, with serialized DAGs and without a scheduler.

Trigger forms need no scheduler: they create a run, which stays queued.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from sandbox.airflow.settings import airflow_settings, database_path, passwords_path
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST, choose_ports
from sandbox.stack.secrets import ADMIN_USER, load_or_create_secrets, write_private
from tests.dags.airflow_project import HOME, REPOSITORY
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class AirflowSite:
    """The address and users of an Airflow."""

    url: str
    user: str
    password: str


def _dags_folder(folder: Path, more: Sequence[Path]) -> Path:
    """Creates a folder with this checkout's DAG files and additional ones of the tests."""
    dags = folder / "dags"
    shutil.copytree(REPOSITORY / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    for file in more:
        shutil.copy(file, dags)
    return dags


def _copy_database(to: Path) -> None:
    """Copies the tests' metadata database, including its write-ahead log."""
    with closing(sqlite3.connect(HOME / "airflow.db")) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def _airflow(environment: dict[str, str], log: Path, *arguments: str) -> None:
    with log.open("ab") as output:
        code = subprocess.call(
            [sys.executable, "-m", "airflow", *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    assert code == 0, log.read_text()


@contextmanager
def running_airflow(*, project: Path, dag_files: Sequence[Path] = ()) -> Iterator[AirflowSite]:
    """Runs an API server inside the block, with the stack's settings and the DAGs of a project.

    Uses a copy of the tests' metadata database, which must exist.

    Args:
        dag_files: DAG files besides those of this checkout.
    """
    folder = Path(tempfile.mkdtemp(prefix="deltaworks-site-"))
    home = StackHome.at(folder / "home", project=REPOSITORY, dags_folder=_dags_folder(folder, dag_files))
    home.create()
    port, secrets = choose_ports({})["airflow"], load_or_create_secrets(home.secrets_file)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment = inherited | airflow_settings(home, port=port, keys=secrets)
    environment |= {
        "PYTHONPATH": str(REPOSITORY / "include"),
        "DELTAWORKS_PROJECT": str(project),
        "DELTAWORKS_ENVIRONMENT": "local",
        "NO_PROXY": HOST,
        "TZ": "UTC",
    }
    write_private(passwords_path(home), f'{{"{ADMIN_USER}": "{secrets.admin_password}"}}\n')
    _copy_database(database_path(home))
    _airflow(environment, home.logs / "reserialize.log", "dags", "reserialize")
    site = AirflowSite(f"http://{HOST}:{port}", ADMIN_USER, secrets.admin_password)
    with (home.logs / "api-server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "airflow", "api-server"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            eventually(lambda: _answers(site, server), "Airflow's API server answers")
            yield site
        finally:
            server.terminate()
            server.wait(timeout=30)
            shutil.rmtree(folder, ignore_errors=True)


def _answers(site: AirflowSite, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "Airflow's API server ended"
    try:
        return httpx2.get(f"{site.url}/api/v2/monitor/health", timeout=10).is_success
    except httpx2.TransportError:
        return False
