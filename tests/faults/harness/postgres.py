"""A PostgreSQL server for Airflow, from the machine's packages, that can be stopped and started."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltaworks.testing import present

#: Debian installs the server's programs outside the PATH.
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("initdb", "pg_ctl", "createdb")
#: Connection arguments of the driver: none. The stack's own are for SQLite.
CONNECT_ARGS: dict[str, str] = {}


def missing() -> str:
    """Returns what is missing and how to install it; empty if nothing is."""
    return "no PostgreSQL server: apt install postgresql" if _programs() is None else ""


def _programs() -> Path | None:
    in_path = [Path(path).resolve().parent for name in _NEEDED if (path := shutil.which(name)) is not None]
    folders = [*in_path, *sorted(_DEBIAN.glob("*/bin"), reverse=True)]
    return next((folder for folder in folders if all((folder / name).exists() for name in _NEEDED)), None)


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server with one empty database, open to every user of this machine."""

    folder: Path
    port: int

    def address(self, driver: str = "psycopg2") -> str:
        """Returns the address as a SQLAlchemy URL."""
        return f"postgresql+{driver}://airflow@127.0.0.1:{self.port}/airflow"

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options, "-w", "start")

    def stop(self) -> None:
        """Stops the server like a crash: connections are cut and transactions are not completed."""
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop")

    def create(self) -> None:
        """Creates the data folder, starts the server and creates the database."""
        self._run("initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "airflow", "-E", "UTF8", "--no-sync")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow", "airflow")

    def _run(self, program: str, *arguments: str) -> None:
        folder = present(_programs())
        subprocess.run(
            [str(folder / program), *arguments],
            user=_owner(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )


def _owner() -> str | None:
    """Returns the user to run the server as: PostgreSQL refuses to run as root."""
    return "postgres" if os.getuid() == 0 else None


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Runs a server inside the block and deletes its data afterwards."""
    # Not in the test's folder: only its owner may read that.
    folder = Path(tempfile.mkdtemp(prefix="deltaworks-postgres-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Postgres(folder, port)
    if (owner := _owner()) is not None:
        shutil.chown(folder, user=pwd.getpwnam(owner).pw_name)
    try:
        server.create()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder)
