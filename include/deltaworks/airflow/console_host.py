"""The console in Airflow's API server: people are Airflow's, and acts are runs that they start with their own token.

Airflow mounts a plugin's application and protects none of its routes; the console's depend on this host's people. A
call of Airflow's API goes through its application in this process, so that it is checked, carried out and audited as
any other request of that person is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
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
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import FastAPI, Request
from sqlalchemy import select

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dashboard_page import add_dashboards
from deltaworks.airflow.page_access import may_read_runs
from deltaworks.console.application import Console, build_console
from deltaworks.console.cached_objects import PATIENCE, CachedObjects
from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.seams import Person, Started
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, DeltaworksError, TransientError

MOUNT: Final = "/deltaworks"
_THREADS = 4
_PAUSED_SECONDS = 10.0
_REQUEST_SECONDS = 20.0
_CONFLICT = 409


class AirflowPeople:
    """People who are logged in to Airflow, with what its auth manager lets them see and start."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        """Airflow's own dependency, and one question for all DAGs."""

        async def of(user: GetUserDep) -> Person:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(_THREADS)
            return await anyio.to_thread.run_sync(_person, user, limiter=self._limiter)

        return of

    def login_address(self, request: Request) -> str | None:
        """Airflow's login, which comes back to the page."""
        return str(get_auth_manager().get_url_login(next_url=str(request.url)))


def _person(user: Any) -> Person:
    manager = get_auth_manager()
    readable = manager.get_authorized_dag_ids(user=user, method="GET")

    @cache
    def may_start(dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=_team_of(dag_id))
        allowed = manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        return bool(allowed)

    @cache
    def may_read(dag_id: str) -> bool:
        return dag_id in readable and may_read_runs(dag_id, user)

    return Person(name=str(user.get_name()), may_read=may_read, may_start=may_start)


def _team_of(dag_id: str) -> str | None:
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    team: str | None = DagModel.get_team_name(dag_id)
    return team


class AirflowActs:
    """Runs that people start in the Airflow of this process."""

    def __init__(self) -> None:
        self._paused: tuple[float, frozenset[str]] | None = None

    async def start(
        self, request: Request, *, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str = ""
    ) -> Started:
        """Start a run in the name of whoever asks.

        Raises:
            DeltaworksError: as `_sent` has it.
        """
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note or None}
        answer = await _sent(request, "POST", path, body)
        state = await self.state(request, dag_id=dag_id, run_id=run_id) if answer is None else str(answer["state"])
        base = self.airflow_address(request) or ""
        address = f"{base}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
        return Started(dag_id=dag_id, run_id=run_id, state=state, address=address)

    async def state(self, request: Request, *, dag_id: str, run_id: str) -> str:
        """How a run is.

        Raises:
            DeltaworksError: as `_sent` has it.
        """
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        answer = await _sent(request, "GET", path, None)
        return "" if answer is None else str(answer["state"])

    def unavailable(self) -> str:
        """Nothing: where this process answers, its API does."""
        return ""

    def paused(self, dag_ids: Iterable[str]) -> frozenset[str] | None:
        """The DAGs that are paused, a few seconds old at most."""
        now = time.monotonic()
        if self._paused is None or now - self._paused[0] > _PAUSED_SECONDS:
            with create_session() as session:
                ids = session.scalars(select(DagModel.dag_id).where(DagModel.is_paused)).all()
            self._paused = (now, frozenset(ids))
        return self._paused[1]

    def airflow_address(self, request: Request) -> str | None:
        """The prefix under which Airflow is served."""
        return str(request.scope.get("root_path", "")).removesuffix(MOUNT)


async def _sent(request: Request, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What Airflow answers to a person's request; None where what is to be made is there already.

    Raises:
        ConfigError: AIRFLOW_REFUSED.
        TransientError: AIRFLOW_UNREACHABLE.
    """
    prefix = str(request.scope.get("root_path", "")).removesuffix(MOUNT)
    headers = {"Accept": "application/json", **_login_of(request)}
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=_airflow()), base_url=str(request.base_url), timeout=_REQUEST_SECONDS
        ) as client:
            answer = await client.request(method, prefix + path, json=body, headers=headers)
    except httpx.HTTPError as error:
        problem = f"Airflow did not answer {method} {path}: {error}."
        raise TransientError("AIRFLOW_UNREACHABLE", problem, hint=_RETRY) from error
    if answer.status_code == _CONFLICT:
        return None
    if answer.is_error:
        raise _refused(method, path, answer)
    content: dict[str, Any] = answer.json()
    return content


_RETRY = "Try again; the log of Airflow's API server says more."


def _refused(method: str, path: str, answer: httpx.Response) -> DeltaworksError:
    return ConfigError(
        "AIRFLOW_REFUSED",
        f"Airflow refused {method} {path} with {answer.status_code}: {answer.text[:300]}",
        hint="Ask who administers Airflow for the right to run this DAG, or see what its form expects.",
    )


def _login_of(request: Request) -> dict[str, str]:
    """The login of a request, as its caller sent it or its cookie has it."""
    if "authorization" in request.headers:
        return {"Authorization": request.headers["authorization"]}
    token = request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _airflow() -> Any:
    """The application that serves this process; building another would take seconds and share nothing."""
    return sys.modules["airflow.api_fastapi.main"].app


def build_host() -> FastAPI:
    """The console over Airflow's people and acts, and the lake of the environment of this process."""
    catalog = CatalogCache()

    def opened() -> ObjectStore:
        environment = catalog.current().environment
        set_environment_keys(environment)
        return open_objects(environment.lake, patience=PATIENCE)

    console = Console(people=AirflowPeople(), acts=AirflowActs(), records=CachedObjects(opened), catalog=catalog)
    app = build_console(console)
    add_dashboards(app)
    return app
