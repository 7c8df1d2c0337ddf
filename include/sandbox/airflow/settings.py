"""Settings of Airflow on one machine as environment variables, and its database, pools and admin user."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from deltaworks.errors import DeltaworksError
from deltaworks.specs.project import load_catalog
from deltaworks.specs.shares import airflow_pools
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST
from sandbox.stack.secrets import ADMIN_USER, StackSecrets, write_private
from sandbox.stack.state import StackState

_BUNDLE = "sandbox.airflow.declarations_bundle.DeclarationsBundle"
_DEFAULT_MASTER = "local[2]"
# Loggers that write a line per heartbeat, request or parsed file.
_QUIET_LOGGERS = " ".join(
    f"{name}=WARNING"
    for name in (
        "http.access",
        "airflow.api_fastapi",
        "airflow.dag_processing",
        "airflow.jobs.scheduler_job_runner",
        "airflow.models.dag",
        "airflow.serialization",
    )
)


def database_path(home: StackHome) -> Path:
    """Returns the path of Airflow's SQLite database."""
    return home.airflow / "airflow.db"


def passwords_path(home: StackHome) -> Path:
    """Returns the path of the simple auth manager's password file."""
    return home.airflow / "passwords.json"


def airflow_settings(home: StackHome, *, port: int, keys: StackSecrets) -> dict[str, str]:
    """Returns Airflow's complete configuration as environment variables; there is no airflow.cfg."""
    url = f"http://{HOST}:{port}"
    sections = {
        "CORE": _core(home, url, keys),
        # Writers wait for each other instead of failing with "database is locked".
        "DATABASE": {
            "SQL_ALCHEMY_CONN": f"sqlite:///{database_path(home)}?timeout=60",
            "SQL_ALCHEMY_CONNECT_ARGS": "sandbox.airflow.database.CONNECT_ARGS",
        },
        "API": {
            "HOST": HOST,
            "PORT": str(port),
            "BASE_URL": url,
            "WORKERS": "1",
            "SECRET_KEY": keys.api_secret_key,
            # Rows a page, which the list of DAGs uses too: it shows the DAGs of ten pipelines on one page.
            "FALLBACK_PAGE_LIMIT": "100",
            # Maximum seconds that open browser connections delay the server's end.
            "WORKER_TIMEOUT": "10",
        },
        "API_AUTH": {"JWT_SECRET": keys.jwt_secret},
        # A task's token must be valid longer than the longest stream run and any wait for a pool slot.
        "EXECUTION_API": {"JWT_EXPIRATION_TIME": "86400"},
        # A stream must survive a restart of the API server: by default three missed heartbeats end it. On a busy
        # machine the server takes longer than the default of 5 s to accept the first tasks, which then fail. Each
        # heartbeat of a stream's task costs the server a request; their default interval is 5 s.
        "WORKERS": {"MAX_FAILED_HEARTBEATS": "30", "MIN_HEARTBEAT_INTERVAL": "10", "EXECUTION_API_TIMEOUT": "30"},
        "SCHEDULER": _scheduler(),
        "DAG_PROCESSOR": {
            "PARSING_PROCESSES": "1",
            # DAG files are read again as soon as a declaration has changed, and otherwise rarely.
            "DAG_BUNDLE_CONFIG_LIST": json.dumps([{"name": "dags-folder", "classpath": _BUNDLE, "kwargs": {}}]),
            "REFRESH_INTERVAL": "10",
            "BUNDLE_REFRESH_CHECK_INTERVAL": "10",
            "MIN_FILE_PROCESS_INTERVAL": "600",
            "PRINT_STATS_INTERVAL": "600",
        },
        "LOGGING": {
            "BASE_LOG_FOLDER": str(home.airflow / "logs"),
            "DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(home.airflow / "logs" / "dag_processor"),
            "COLORED_CONSOLE_LOG": "False",
            "UVICORN_LOGGING_LEVEL": "WARNING",
            "NAMESPACE_LEVELS": _QUIET_LOGGERS,
        },
        "USAGE_DATA_COLLECTION": {"ENABLED": "False"},
    }
    rendered = {
        f"AIRFLOW__{section}__{key}": value for section, options in sections.items() for key, value in options.items()
    }
    master = os.environ.get("DELTAWORKS_SPARK_MASTER", _DEFAULT_MASTER)
    # JSON, since Airflow drops the host of a URI such as spark://local[2] and falls back to YARN.
    connection = json.dumps({"conn_type": "spark", "host": master})
    airflow_connection = {"conn_type": "http", "host": url, "login": ADMIN_USER, "password": keys.admin_password}
    return rendered | {
        "AIRFLOW_HOME": str(home.airflow),
        # `down` waits for tasks beforehand, and after a failure nothing reads their results.
        "DELTAWORKS_EXECUTOR_GRACE_SECONDS": "3",
        "AIRFLOW_CONN_SPARK_DEFAULT": connection,
        "AIRFLOW_CONN_DELTAWORKS_AIRFLOW": json.dumps(airflow_connection),
    }


def _core(home: StackHome, url: str, keys: StackSecrets) -> dict[str, str]:
    return {
        "DAGS_FOLDER": str(home.dags_folder),
        "PLUGINS_FOLDER": str(home.plugins_folder),
        "LOAD_EXAMPLES": "False",
        "DAGS_ARE_PAUSED_AT_CREATION": "False",
        "EXECUTOR": "deltaworks.airflow.executor.LocalExecutor",
        "PARALLELISM": "16",
        "FERNET_KEY": keys.fernet_key,
        "EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN_USER}:admin",
        "SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords_path(home)),
        # The default resolves the host name by DNS, which takes seconds without a DNS server.
        "HOSTNAME_CALLABLE": "socket.gethostname",
        "MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
    }


def _scheduler() -> dict[str, str]:
    return {
        # After this time a task whose supervising process died is failed and its stream restarted. It is far longer
        # than a restart of the API server.
        "TASK_INSTANCE_HEARTBEAT_TIMEOUT": "90",
        "TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "10",
        # A killed scheduler counts as dead 30 s after its last heartbeat; the next scheduler restarts its tasks at the
        # next of these checks.
        "ORPHANED_TASKS_CHECK_INTERVAL": "15",
        "CATCHUP_BY_DEFAULT": "False",
        # While no task ends or waits. By default the scheduler looks at all running streams each second.
        "SCHEDULER_IDLE_SLEEP_TIME": "2",
    }


@dataclass(frozen=True, slots=True)
class AirflowHome:
    """Prepares Airflow's folder. Every method is idempotent."""

    home: StackHome
    environment: Mapping[str, str]

    def write_password(self, password: str) -> None:
        """Sets the admin's password, which Airflow would otherwise generate and print."""
        write_private(passwords_path(self.home), json.dumps({ADMIN_USER: password}) + "\n")

    def migrate(self, state: StackState) -> StackState:
        """Creates or upgrades the database, once per Airflow version. Takes about ten seconds."""
        installed = version("apache-airflow-core")
        path = database_path(self.home)
        if state.migrated_for == installed and path.exists():
            return state
        self._airflow("db", "migrate")
        # Readers then never block the writer; the mode stays in the file.
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        return state.replace(migrated_for=installed, pools_imported="")

    def import_pools(self, state: StackState) -> StackState:
        """Imports the declared pools if they changed since the last import."""
        name = self.environment.get("DELTAWORKS_ENVIRONMENT")
        declared = load_catalog(name, root=self.home.project, skip_invalid=True, only=()).environment
        content = json.dumps(airflow_pools(declared.shares), indent=2)
        digest = hashlib.sha256(content.encode()).hexdigest()
        if state.pools_imported == digest:
            return state
        pools_file = self.home.airflow / "pools.json"
        pools_file.write_text(content)
        self._airflow("pools", "import", str(pools_file))
        return state.replace(pools_imported=digest)

    def _airflow(self, *arguments: str) -> None:
        log = self.home.logs / "airflow-setup.log"
        with log.open("ab") as output:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", *arguments],
                env=dict(self.environment),
                cwd=self.home.run,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise DeltaworksError(
                "AIRFLOW_SETUP_FAILED",
                f"airflow {' '.join(arguments)} ended with {done.returncode}: {last_lines}",
                hint=f"Read {log}.",
            )
