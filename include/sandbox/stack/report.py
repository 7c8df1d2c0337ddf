"""Results of `up`, `down` and `status` of the embedded stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from sandbox.stack.processes import StackProcess

_MAX_NAMED_DAGS: Final = 5


@dataclass(frozen=True, slots=True)
class StackAddresses:
    """Addresses and logins of a running stack. `kafka_bootstrap` and `collector_url` are None if it has no broker or
    collector.
    """

    airflow_url: str
    airflow_user: str
    airflow_password: str
    lake_endpoint: str
    aws_endpoint: str
    landing_queue_url: str
    kafka_bootstrap: str | None
    collector_url: str | None
    ports: Mapping[str, int]
    home: Path
    already_running: bool

    def airflow_api(self) -> AirflowApi:
        """Returns a client of this stack's Airflow."""
        return AirflowApi(self.airflow_login())

    def airflow_login(self) -> AirflowLogin:
        """Returns the address and the admin login of this stack's Airflow."""
        return AirflowLogin(
            url=self.airflow_url,
            source="the embedded stack",
            username=self.airflow_user,
            password=self.airflow_password,
        )


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """A program's state as reported by the supervisor, and the result of its health check."""

    name: str
    state: str
    pid: int | None
    uptime_seconds: float | None
    healthy: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The status of all programs. `leftovers` are processes of the stack without a supervisor."""

    running: bool
    healthy: bool
    programs: tuple[ProgramStatus, ...]
    addresses: StackAddresses | None
    leftovers: tuple[StackProcess, ...]


@dataclass(frozen=True, slots=True)
class DownReport:
    """The result of `down`. `killed` are processes that did not end in time."""

    was_running: bool
    paused_dags: tuple[str, ...]
    killed: tuple[StackProcess, ...]
    notes: tuple[str, ...]
    seconds: float

    def describe(self) -> str:
        """Returns the line that `down` prints at the end."""
        paused = describe_dags(self.paused_dags) or "no DAG"
        return f"Stopped in {self.seconds:.0f} s; the next `up` unpauses {paused}."


def describe_dags(dag_ids: Sequence[str]) -> str:
    """Returns up to five DAG ids, or the number of DAGs if there are more."""
    return ", ".join(dag_ids) if len(dag_ids) <= _MAX_NAMED_DAGS else f"{len(dag_ids)} DAGs"
