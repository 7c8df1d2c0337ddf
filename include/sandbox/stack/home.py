"""Paths of an embedded stack: its data folder, and the checkout whose DAGs and code it runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deltaworks.specs.catalog import project_root

# Unix socket paths are limited to 104 bytes on macOS and 108 on Linux.
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class StackHome:
    """Folders and files of one embedded stack. Stacks with different roots share nothing."""

    project: Path
    root: Path
    dags_folder: Path
    plugins_folder: Path

    @classmethod
    def default(cls) -> StackHome:
        """Returns the stack of this checkout: DELTAWORKS_HOME, or `.deltaworks` in the checkout."""
        project = project_root()
        root = Path(os.environ.get("DELTAWORKS_HOME", project / ".deltaworks"))
        return cls.at(root, project=project)

    @classmethod
    def at(cls, root: Path, *, project: Path | None = None, dags_folder: Path | None = None) -> StackHome:
        """Returns a stack with its data under `root`, by default with the checkout's DAGs and plugins."""
        project = (project or project_root()).absolute()
        return cls(
            project=project,
            root=root.absolute(),
            dags_folder=(dags_folder or project / "dags").absolute(),
            plugins_folder=project / "plugins",
        )

    def create(self) -> None:
        """Creates the folders. The root is readable by its owner only, because it contains generated secrets."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for folder in (self.logs, self.lake, self.airflow, self.run):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def env_file(self) -> Path:
        """Environment variables of every process of the stack."""
        return self.root / "env"

    @property
    def state_file(self) -> Path:
        """State that is kept after `down`: ports, paused DAGs, stopped streams."""
        return self.root / "stack.json"

    @property
    def secrets_file(self) -> Path:
        """Generated keys and the admin's password."""
        return self.root / "secrets.json"

    @property
    def lock_file(self) -> Path:
        """Lock file of `up` and `down`."""
        return self.root / "stack.lock"

    @property
    def logs(self) -> Path:
        """Folder with one log per program, rotated by the supervisor."""
        return self.root / "logs"

    @property
    def request_log(self) -> Path:
        """Log of all requests that moto answered."""
        return self.logs / "landing-requests.log"

    @property
    def landing_journal(self) -> Path:
        """Durable state of moto except objects: messages, records and declarations."""
        return self.root / "landing" / "journal.db"

    @property
    def lake(self) -> Path:
        """Objects of lake and landing bucket as files behind s3proxy, one folder per bucket."""
        return self.root / "lake"

    @property
    def keyring(self) -> Path:
        """Keys for personal data, created with the first event that contains some."""
        return self.root / "keyring"

    @property
    def kafka(self) -> Path:
        """Topics of the broker, if the stack has one."""
        return self.root / "kafka"

    @property
    def spool(self) -> Path:
        """Acknowledged events that the collector has not delivered yet; kept after `down`."""
        return self.root / "spool"

    @property
    def airflow(self) -> Path:
        """Airflow's folder, AIRFLOW_HOME."""
        return self.root / "airflow"

    @property
    def run(self) -> Path:
        """Working directory of all programs of the stack.

        It identifies a process's stack if the process has overwritten its environment, as Airflow does when it sets its
        title.
        """
        return self.root / "run"

    @property
    def supervisor_config(self) -> Path:
        """The generated configuration of supervisord."""
        return self.root / "supervisord.conf"

    @property
    def supervisor_socket(self) -> Path:
        """The control socket of supervisord."""
        address = self.root / "supervisor.sock"
        if len(os.fsencode(address)) <= _MAX_SOCKET_PATH:
            return address
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"deltaworks-{os.getuid()}-{digest}.sock"
