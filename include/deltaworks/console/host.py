"""The interfaces a host provides to the console: authentication, actions, and reads of control objects.

The console depends neither on Airflow nor on the lake's tables. In Airflow's API server users come from its auth
manager and actions are DAG runs; the standalone console has one read-only user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from fastapi import Request

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control.objects import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The user of one request, with the DAGs whose runs they may read and those they may start; None for all DAGs."""

    name: str
    readable_dags: frozenset[str] | None
    startable_dags: frozenset[str] | None

    def may_read(self, dag_id: str) -> bool:
        """Returns whether the user may read the runs of a DAG."""
        return self.readable_dags is None or dag_id in self.readable_dags

    def may_start(self, dag_id: str) -> bool:
        """Returns whether the user may start runs of a DAG."""
        return self.startable_dags is None or dag_id in self.startable_dags


class Authenticator(Protocol):
    """Identifies users. Every route of the console depends on it."""

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """A FastAPI dependency that returns the person of a request.

        Raises (the dependency):
            HTTPException: 401 without a login, 403 for a user who may see nothing.
        """

    def login_address(self, request: Request) -> str | None:
        """Returns the login page, which redirects back to the requested page; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """A run that waits for a person's approval. `address` is the page for the answer."""

    dag_id: str
    run_id: str
    subject: str
    since: datetime | None
    address: str


class Actions(Protocol):
    """The Airflow that runs the actions of pages, with the permissions and in the name of the user."""

    def connect(self, request: Request) -> Callable[[], AirflowApi]:
        """Returns a function that opens a client of Airflow's API with the login of the request's user.

        Console threads call the function. It raises ConfigError (AIRFLOW_CONNECTION_MISSING) without Airflow.
        """

    def unavailable_reason(self) -> str:
        """Returns why no run can start, empty if runs can start. With a reason, pages show commands instead of
        buttons."""

    def paused_dags(self) -> frozenset[str] | None:
        """Returns the paused DAGs; None if unknown."""

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """Returns pending approvals, oldest first; empty if they are unknown.

        Args:
            airflow: the prefix of Airflow's pages.
        """

    def airflow_address(self, request: Request) -> str | None:
        """Returns the prefix of Airflow's pages; None without Airflow."""


class Reader(ObjectStore, Protocol):
    """Reads control objects for one request, from the cache or, within a time limit, from the storage.

    It has the methods of `ObjectStore`, so the modules that read and write records accept it. Writes raise. For an
    object that is still being read, or could never be read, `get` raises TransientError.
    """

    def fetch(self, keys: Iterable[str], *, ttl_seconds: float | None = None) -> None:
        """Reads several keys in parallel, so that `get` does not wait. Raises nothing.

        Args:
            ttl_seconds: read copies again that are older; by default the kind of the key decides.
        """

    @property
    def is_reading(self) -> bool:
        """Whether a requested key is still being read: the page cannot say anything yet."""

    @property
    def age_seconds(self) -> float:
        """The age of the oldest served copy that is too old to be judged by the current time; 0 if there is none."""

    @property
    def stale_since(self) -> datetime | None:
        """The begin of the first failed read since the last successful one; None if no read failed."""

    @property
    def problem(self) -> str:
        """Why an object could not be read; empty if all could."""


class Records(Protocol):
    """Creates the readers of control objects for all requests. Thread-safe."""

    def reader(self) -> Reader:
        """Returns a reader for one request."""
