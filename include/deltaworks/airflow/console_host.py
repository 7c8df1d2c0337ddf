"""Hosts the console in Airflow's API server: users are Airflow's, and actions are DAG runs started with the user's
token.

Airflow mounts a plugin's application without protecting its routes, so the console's routes depend on this host's
authentication. Calls of Airflow's API go through its application in this process, so that they are authorized, executed
and audited like any other request of that user.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from fastapi import FastAPI, Request
from sqlalchemy import select

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dashboard_page import add_dashboards
from deltaworks.airflow.page_access import may_read_runs, team_of
from deltaworks.airflow.server_paths import server_path
from deltaworks.console.actions.rest_client import RestActions
from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects
from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_process import PageProcess
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.operations.base import APPROVE_TASK

MOUNT: Final = "/deltaworks"
#: With `off` the API server renders pages itself, which needs less memory and more of its CPU time.
PAGE_PROCESS_VARIABLE: Final = "DELTAWORKS_CONSOLE_PROCESS"
_THREADS = 4
_PAUSED_CACHE_SECONDS = 10.0
_APPROVALS_CACHE_SECONDS, _MAX_APPROVALS = 5.0, 200
_API_SERVER_MODULE: Final = "airflow.api_fastapi.main"


class AirflowAuthenticator:
    """Identifies users logged in to Airflow, with the permissions of its auth manager."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """Returns a dependency that identifies the user. It reads the permissions for all DAGs with one query."""

        async def identify_user(user: GetUserDep) -> Person:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(_THREADS)
            return await anyio.to_thread.run_sync(_person, user, limiter=self._limiter)

        return identify_user

    def login_address(self, request: Request) -> str | None:
        """Returns Airflow's login page, which redirects back to the requested page."""
        return str(get_auth_manager().get_url_login(next_url=str(request.url)))


def _person(user: Any) -> Person:
    manager = get_auth_manager()
    readable = manager.get_authorized_dag_ids(user=user, method="GET")

    @cache
    def may_start(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=team_of(dag_id))
        allowed = manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        return bool(allowed)

    @cache
    def may_read(dag_id: str) -> bool:
        return dag_id in readable and may_read_runs(dag_id, user)

    return Person(name=str(user.get_name()), may_read=may_read, may_start=may_start)


class AirflowActions(RestActions):
    """Starts runs in the Airflow of this process, through its API and with the user's token."""

    def __init__(self) -> None:
        super().__init__(_airflow_client, address=_path_prefix)
        self._paused_cache: tuple[float, frozenset[str]] | None = None
        self._approvals_cache: tuple[float, list[tuple[str, str, str, datetime]]] | None = None

    def unavailable_reason(self) -> str:
        """Returns a reason if the scheduler is dead, since no run could start. Empty in a process that does not serve
        the API.
        """
        return super().unavailable_reason() if _API_SERVER_MODULE in sys.modules else ""

    def paused_dags(self) -> frozenset[str] | None:
        """Returns the paused DAGs, cached for a few seconds."""
        now = time.monotonic()
        if self._paused_cache is None or now - self._paused_cache[0] > _PAUSED_CACHE_SECONDS:
            with create_session() as session:
                ids = session.scalars(select(DagModel.dag_id).where(DagModel.is_paused)).all()
            self._paused_cache = (now, frozenset(ids))
        return self._paused_cache[1]

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """Returns the pending approvals of Deltaworks DAGs, oldest first, cached for a few seconds."""
        now = time.monotonic()
        if self._approvals_cache is None or now - self._approvals_cache[0] > _APPROVALS_CACHE_SECONDS:
            self._approvals_cache = (now, _read_pending_approvals())
        return tuple(
            PendingApproval(
                dag_id=dag_id,
                run_id=run_id,
                subject=subject,
                since=since,
                address=f"{airflow or ''}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
                f"/tasks/{APPROVE_TASK}/required_actions",
            )
            for dag_id, run_id, subject, since in self._approvals_cache[1]
        )


def _read_pending_approvals() -> list[tuple[str, str, str, datetime]]:
    """Returns DAG, run, subject and start of each approval without an answer whose task still waits."""
    query = (
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail.subject, HITLDetail.created_at)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(
            HITLDetail.responded_at.is_(None),
            TaskInstance.task_id == APPROVE_TASK,
            TaskInstance.state.in_((TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED)),
        )
        .order_by(HITLDetail.created_at)
        .limit(_MAX_APPROVALS)
    )
    with create_session() as session:
        return [(dag_id, run_id, subject, since) for dag_id, run_id, subject, since in session.execute(query)]


def _path_prefix(request: Request) -> str:
    """Returns the path prefix that Airflow is served under."""
    return str(request.scope.get("root_path", "")).removesuffix(MOUNT)


def _airflow_client(request: Request | None) -> httpx.AsyncClient:
    """Returns a client of this process's application, with the login of a request."""
    prefix = server_path("") if request is None else _path_prefix(request)
    base = "http://localhost/" if request is None else str(request.base_url.replace(path="/"))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=_airflow_app(), raise_app_exceptions=False),
        base_url=base.rstrip("/") + prefix,
        headers={"Accept": "application/json", **({} if request is None else _auth_headers(request))},
    )


def _auth_headers(request: Request) -> dict[str, str]:
    """Returns the authorization header of a request, from its own header or its cookie."""
    if "authorization" in request.headers:
        return {"Authorization": request.headers["authorization"]}
    token = request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _airflow_app() -> Any:
    """Returns the application that serves this process.

    A second instance would take seconds to build and would not know the sessions of the first one.
    """
    return sys.modules[_API_SERVER_MODULE].app


def _set_lake_keys() -> None:
    """Sets the keys of the connections that the environment names, without loading pipelines."""
    from deltaworks.specs.project import load_catalog

    set_environment_keys(load_catalog(skip_invalid=True, only=()).environment)


def build_host() -> FastAPI:
    """Returns the console with Airflow's users and runs, on the lake of this process's environment."""
    catalog = CatalogCache()

    def open_lake() -> ObjectStore:
        environment = catalog.current().environment
        set_environment_keys(environment)
        return open_objects(environment.lake, timeouts=CLIENT_TIMEOUTS)

    console = Console(
        authenticator=AirflowAuthenticator(),
        actions=AirflowActions(),
        records=CachedObjects(open_lake),
        catalog=catalog,
        renderer=None if os.environ.get(PAGE_PROCESS_VARIABLE) == "off" else PageProcess(prepare=_set_lake_keys),
    )
    app = build_console(console)
    add_dashboards(app)
    return app
