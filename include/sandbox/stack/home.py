"""Where an embedded stack lives on disk: its data folder, and the checkout whose DAGs and library it runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deltaworks.specs.catalog import project_root

# A unix socket's path is limited to 104 bytes on macOS and 108 on Linux.
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class StackHome:
    """The folders and files of one embedded stack. Two stacks with different roots share nothing."""

    project: Path
    root: Path
    dags_folder: Path
    plugins_folder: Path

    @classmethod
    def default(cls) -> StackHome:
        """The stack of this checkout: DELTAWORKS_HOME, or `.deltaworks` in the checkout."""
        project = project_root()
        root = Path(os.environ.get("DELTAWORKS_HOME", project / ".deltaworks"))
        return cls.at(root, project=project)

    @classmethod
    def at(cls, root: Path, *, project: Path | None = None, dags_folder: Path | None = None) -> StackHome:
        """A stack with its data under `root`, by default with the checkout's DAGs and plugins."""
        project = (project or project_root()).absolute()
        return cls(
            project=project,
            root=root.absolute(),
            dags_folder=(dags_folder or project / "dags").absolute(),
            plugins_folder=project / "plugins",
        )

    def create(self) -> None:
        """Make the folders; the root is readable by its owner only, since it holds generated secrets."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for folder in (self.logs, self.lake, self.airflow, self.run):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def env_file(self) -> Path:
        """The environment every process of the stack inherits."""
        return self.root / "env"

    @property
    def state_file(self) -> Path:
        """What must outlive `down`: ports, what `down` paused."""
        return self.root / "stack.json"

    @property
    def secrets_file(self) -> Path:
        """Generated keys and the admin's password."""
        return self.root / "secrets.json"

    @property
    def lock_file(self) -> Path:
        """Held while `up` or `down` works."""
        return self.root / "stack.lock"

    @property
    def logs(self) -> Path:
        """One log per program, rotated by the supervisor."""
        return self.root / "logs"

    @property
    def request_log(self) -> Path:
        """Every request the landing side (moto) answered."""
        return self.logs / "landing-requests.log"

    @property
    def landing_journal(self) -> Path:
        """What the landing side remembers besides objects: messages, records, and what is declared."""
        return self.root / "landing" / "journal.db"

    @property
    def lake(self) -> Path:
        """The objects of the lake and those that landed, as files, behind s3proxy: a folder is a bucket."""
        return self.root / "lake"

    @property
    def keyring(self) -> Path:
        """The keys of personal data, made with the first event that has any."""
        return self.root / "keyring"

    @property
    def kafka(self) -> Path:
        """The topics of the broker, where the stack has one."""
        return self.root / "kafka"

    @property
    def spool(self) -> Path:
        """What the collector has acknowledged and its sinks do not have yet; outlives `down`."""
        return self.root / "spool"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    @property
    def run(self) -> Path:
        """The working directory of every program of the stack.

        A process that rewrites its title also wipes the environment others can read of it (Airflow does); its
        working directory still shows which stack it belongs to.
        """
        return self.root / "run"

    @property
    def supervisor_config(self) -> Path:
        """The generated configuration of the process supervisor."""
        return self.root / "supervisord.conf"

    @property
    def supervisor_socket(self) -> Path:
        """The supervisor's control socket."""
        address = self.root / "supervisor.sock"
        if len(os.fsencode(address)) <= _MAX_SOCKET_PATH:
            return address
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"deltaworks-{os.getuid()}-{digest}.sock"
