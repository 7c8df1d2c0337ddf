"""The three things a host gives to the console: who asks, how runs are started, and how control objects are read.

The console knows neither Airflow nor the lake's tables. In Airflow's API server people come from its auth manager and
acts are DAG runs of its own; alone, there is one person who reads, and nobody who acts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from fastapi import Request

from deltaworks.control.objects import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who asks, for the time of one request.

    `may_read` says whether the runs of a DAG may be seen, `may_start` whether a run of it may be started. Both are
    called by a thread of the console's, and may take milliseconds.
    """

    name: str
    may_read: Callable[[str], bool]
    may_start: Callable[[str], bool]


class Authenticator(Protocol):
    """Who asks. Every route of the console depends on it."""

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """A dependency of FastAPI that gives the person of a request.

        Raises (the dependency):
            HTTPException: 401 for nobody, 403 for somebody who may see nothing.
        """

    def login_address(self, request: Request) -> str | None:
        """Where somebody without a login is sent, to come back to what was requested; None without such a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that was started, or had been by the same request. `address` is its page in Airflow."""

    dag_id: str
    run_id: str
    state: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as it is now. `by` triggered it, `results` are records that its job left, `question` is the page on which
    a person answers what it asks, empty where it asks nothing."""

    dag_id: str
    run_id: str
    state: str
    conf: Mapping[str, Any]
    address: str
    triggered_by: str = ""
    tasks: tuple[tuple[str, str], ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    approval_address: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in ("success", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """A run that waits for the answer of a person. `address` is the page on which it is given."""

    dag_id: str
    run_id: str
    subject: str
    since: datetime | None
    address: str


class Actions(Protocol):
    """How runs of DAGs are started, with the right and in the name of the person who asks."""

    def start(
        self, request: Request, *, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str = ""
    ) -> Awaitable[StartedRun]:
        """Start a run. With the same `run_id` twice there is still one run.

        Raises:
            DeltaworksError: Airflow refuses it, or does not answer.
        """

    def run_state(self, request: Request, *, dag_id: str, run_id: str) -> Awaitable[str]:
        """How a run is: queued, running, success, failed.

        Raises:
            DeltaworksError: Airflow refuses to say, or does not answer.
        """

    def dag_params(self, request: Request, *, dag_id: str) -> Awaitable[Mapping[str, Any]]:
        """The params of a DAG by name, each with its `value`, `description` and `schema`, as Airflow has them.

        Raises:
            DeltaworksError: Airflow refuses to say, or does not answer.
        """

    def run_status(self, request: Request, *, dag_id: str, run_id: str, task_ids: Iterable[str]) -> Awaitable[RunStatus]:
        """A run, with what the last of these tasks that left results has left.

        Raises:
            DeltaworksError: Airflow refuses to say, or does not answer.
        """

    def unavailable_reason(self) -> str:
        """Why nothing can be started now; empty where it can. Pages show commands then, in place of buttons."""

    def paused_dags(self) -> frozenset[str] | None:
        """The DAGs that are paused; None where nobody knows."""

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """The approvals that wait for a person, the oldest first; none where nobody knows.

        Args:
            airflow: what the addresses of Airflow's own pages begin with.
        """

    def airflow_address(self, request: Request) -> str | None:
        """What the addresses of Airflow's own pages begin with; None where there is no Airflow."""


class Reader(ObjectStore, Protocol):
    """The control objects as one request sees them: from the cache, or from the storage within a bound.

    It takes part as an `ObjectStore` so that the modules that write records read them here as well. Whatever writes
    raises. `get` raises TransientError for an object that nobody has been able to read yet.
    """

    def fetch(self, keys: Iterable[str]) -> None:
        """Read several at once; `get` gives them without waiting then. Raises nothing."""

    @property
    def stale_since(self) -> datetime | None:
        """Since when the oldest of what was read here could not be read anew; None where all of it is current."""

    @property
    def problem(self) -> str:
        """Why something could not be read; empty where all was."""


class Records(Protocol):
    """Reads control objects for all requests. Safe to use from several threads."""

    def reader(self) -> Reader:
        """For one request."""
