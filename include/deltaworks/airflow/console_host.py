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
from typing import Annotated, Any, Final
from urllib.parse import quote

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx2
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN, ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from fastapi import Depends, FastAPI, Request
from sqlalchemy import select

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.names import server_path
from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects, CatalogCache
from deltaworks.console.console import Console
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_process import PageProcess
from deltaworks.console.widget_streams import WidgetStreams
from deltaworks.control.objects import open_objects
from deltaworks.errors import TransientError
from deltaworks.operations.base import APPROVE_TASK
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog

MOUNT: Final = "/deltaworks"
#: With `off` the API server renders pages itself, which needs less memory and more of its CPU time.
PAGE_PROCESS_VARIABLE: Final = "DELTAWORKS_CONSOLE_PROCESS"
_THREADS = 4
_PAUSED_CACHE_SECONDS = _HEALTH_CACHE_SECONDS = 10.0
_APPROVALS_CACHE_SECONDS, _MAX_APPROVALS = 5.0, 200
_API_SERVER_MODULE: Final = "airflow.api_fastapi.main"
_WebsiteAccess = Annotated[None, Depends(requires_access_view(AccessView.WEBSITE))]


class AirflowAuthenticator:
    """Identifies users logged in to Airflow, with the permissions of its auth manager."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """Returns a dependency that identifies the user with their rights to all DAGs."""

        async def identify_user(user: GetUserDep, _: _WebsiteAccess) -> Person:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(_THREADS)
            return await anyio.to_thread.run_sync(_person, user, limiter=self._limiter)

        return identify_user

    def login_address(self, request: Request) -> str | None:
        """Returns Airflow's login page, which redirects back to the requested page."""
        return str(get_auth_manager().get_url_login(next_url=str(request.url)))


def _person(user: Any) -> Person:
    manager = get_auth_manager()
    dag_ids = manager.get_authorized_dag_ids(user=user, method="GET")
    with_teams = conf.getboolean("core", "multi_team", fallback=False)
    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(dag_ids)) if with_teams else {}

    def authorized(method: ResourceMethod) -> frozenset[str]:
        return frozenset(
            dag_id
            for dag_id in dag_ids
            if manager.is_authorized_dag(
                method=method,
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=dag_id, team_name=teams.get(dag_id)),
                user=user,
            )
        )

    return Person(name=str(user.get_name()), readable_dags=authorized("GET"), startable_dags=authorized("POST"))


class AirflowActions:
    """The Airflow of this process, whose API is called with the user's token."""

    def __init__(self) -> None:
        self._unavailable, self._checked_at = "", float("-inf")
        self._paused_cache: tuple[float, frozenset[str]] | None = None
        self._approvals_cache: tuple[float, list[tuple[str, str, str, datetime]]] | None = None

    def connect(self, request: Request) -> Callable[[], AirflowApi]:
        """Returns a function that opens a client with the token of a request, for threads of the event loop."""
        login = AirflowLogin(
            url=str(request.base_url.replace(path="/")).rstrip("/") + _path_prefix(request),
            public_url=_path_prefix(request),
            source="your session in Airflow",
            token=_token_of(request),
            is_session=True,
        )
        return lambda: _in_process_client(login)

    def unavailable_reason(self) -> str:
        """Returns a reason if no run can start: the scheduler is dead, or Airflow does not answer. Checked every 10 s.

        Empty in a process that does not serve the API.
        """
        if _API_SERVER_MODULE in sys.modules and time.monotonic() - self._checked_at >= _HEALTH_CACHE_SECONDS:
            self._unavailable, self._checked_at = _check_scheduler(), time.monotonic()
        return self._unavailable

    def airflow_address(self, request: Request) -> str:
        """Returns the prefix of Airflow's pages."""
        return _path_prefix(request)

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


def _token_of(request: Request) -> str:
    """Returns the token of a request, from its header or its cookie."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")


def _check_scheduler() -> str:
    login = AirflowLogin(url=f"http://localhost{server_path('')}", source="this process", is_session=True)
    try:
        with _in_process_client(login) as api:
            scheduler = api.health().scheduler
    except TransientError as error:
        return f"Airflow does not answer ({type(error.__cause__).__name__})."
    return "" if scheduler.is_healthy else f"Airflow's scheduler is {scheduler.status}: nothing would run."


def _in_process_client(login: AirflowLogin) -> AirflowApi:
    return AirflowApi(login, should_retry=False, transport=_InProcessTransport())


class _InProcessTransport(httpx2.BaseTransport):
    """Sends requests to the application of this process. For threads that its event loop has started."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the response of the application."""
        request.headers["Accept-Encoding"] = "identity"
        return anyio.from_thread.run(self._call, request)

    async def _call(self, request: httpx2.Request) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=_airflow_app(), raise_app_exceptions=False)
        response = await transport.handle_async_request(request)
        return httpx2.Response(response.status_code, headers=response.headers, content=await response.aread())


def _airflow_app() -> Any:
    """Returns the application that serves this process.

    A second instance would take seconds to build and would not know the sessions of the first one.
    """
    return sys.modules[_API_SERVER_MODULE].app


def _set_lake_keys() -> None:
    """Sets the keys of the connections that the environment names, without loading pipelines."""
    set_environment_keys(load_catalog(skip_invalid=True, only=()).environment)


def _load_catalog() -> Catalog:
    """Loads all declarations, and sets the keys for this process and for the table reads it starts."""
    catalog = load_catalog(skip_invalid=True)
    set_environment_keys(catalog.environment)
    return catalog


def build_host() -> FastAPI:
    """Returns the console with Airflow's users and runs, on the lake of this process's environment."""
    catalog = CatalogCache(_load_catalog)
    console = Console(
        authenticator=AirflowAuthenticator(),
        actions=AirflowActions(),
        records=CachedObjects(lambda: open_objects(catalog.current().environment.lake, timeouts=CLIENT_TIMEOUTS)),
        catalog=catalog,
        renderer=None if os.environ.get(PAGE_PROCESS_VARIABLE) == "off" else PageProcess(prepare=_set_lake_keys),
    )
    return build_console(console, streams=WidgetStreams(prepare=_set_lake_keys))
