"""What `up`, `down` and `status` of the embedded stack answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltaworks.operations.airflow_api import AirflowApi
from deltaworks.operations.airflow_login import AirflowLogin
from sandbox.stack.processes import StackProcess

_MAX_NAMED_DAGS: Final = 5


@dataclass(frozen=True, slots=True)
class StackAddresses:
    """Where a running stack is reached, and with what. `kafka_bootstrap` is None where it has no broker,
    `collector_url` where nothing takes events over HTTP."""

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
        """A client of this stack's Airflow."""
        return AirflowApi(self.airflow_login())

    def airflow_login(self) -> AirflowLogin:
        """The address of this stack's Airflow, and its one login."""
        return AirflowLogin(
            url=self.airflow_url,
            source="the embedded stack",
            username=self.airflow_user,
            password=self.airflow_password,
        )


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """One program as the supervisor and its own health check see it."""

    name: str
    state: str
    pid: int | None
    uptime_seconds: float | None
    healthy: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The whole stack. `leftovers` are processes of it that no supervisor watches."""

    running: bool
    healthy: bool
    programs: tuple[ProgramStatus, ...]
    addresses: StackAddresses | None
    leftovers: tuple[StackProcess, ...]


@dataclass(frozen=True, slots=True)
class DownReport:
    """What `down` did. `killed` are the processes that did not end by themselves."""

    was_running: bool
    paused_dags: tuple[str, ...]
    killed: tuple[StackProcess, ...]
    notes: tuple[str, ...]
    seconds: float

    def describe(self) -> str:
        """The one line that `down` ends with."""
        paused = describe_dags(self.paused_dags) or "no DAG"
        return f"Stopped in {self.seconds:.0f} s; the next `up` unpauses {paused}."


def describe_dags(dag_ids: Sequence[str]) -> str:
    """A few DAGs by name, many by how many there are."""
    return ", ".join(dag_ids) if len(dag_ids) <= _MAX_NAMED_DAGS else f"{len(dag_ids)} DAGs"
