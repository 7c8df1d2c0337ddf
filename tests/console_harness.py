"""A console over a project and a folder of control objects, for tests of its pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from deltaworks.airflow_client.api import AirflowApi, DagRun, TaskInstance
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.console.application import build_console
from deltaworks.console.cached_objects import CachedObjects, CatalogCache
from deltaworks.console.console import Console, PageRenderer
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_context import PageContext
from deltaworks.console.widget_streams import WidgetStreams
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.heartbeats import put_heartbeat

EVERYTHING = "everything"
#: A busy machine may need longer to read a file than a page waits; only tests of slow storage use the real limit.
_WAIT_SECONDS = 30.0


def person(
    name: str = "ada", *, reads: Iterable[str] | str = EVERYTHING, starts: Iterable[str] | str = EVERYTHING
) -> Person:
    """Returns a person who may see and start some DAGs, or all."""
    return Person(name=name, readable_dags=_dag_ids(reads), startable_dags=_dag_ids(starts))


def _dag_ids(dag_ids: Iterable[str] | str) -> frozenset[str] | None:
    return None if dag_ids == EVERYTHING else frozenset(dag_ids)


@dataclass
class FakeAuthenticator:
    """Identifies the person of the header `X-Person`."""

    people: Mapping[str, Person]

    @property
    def identify(self) -> Callable[..., Awaitable[Person]]:
        async def identify_user(request: Request) -> Person:
            name = request.headers.get("x-person")
            if name is None:
                raise HTTPException(401, "Not authenticated")
            if name not in self.people:
                raise HTTPException(403, "Invalid token")
            return self.people[name]

        return identify_user

    def login_address(self, request: Request) -> str | None:
        return f"/login?next={request.url.path}"


class FakeAirflow(AirflowApi):
    """A client of the Airflow of `FakeActions`, which sends no requests."""

    def __init__(self, actions: FakeActions) -> None:
        super().__init__(AirflowLogin(url="http://airflow.invalid", public_url="", source="the tests"))
        self._actions = actions

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None, note: str = ""
    ) -> DagRun:
        assert run_id is not None
        if (dag_id, run_id) not in [run[:2] for run in self._actions.started]:
            self._actions.started.append((dag_id, run_id, dict(conf or {})))
        return self.dag_run(dag_id, run_id)

    def dag_params(self, dag_id: str) -> dict[str, Any]:
        return self._actions.forms.get(dag_id, {})

    def find_run(self, dag_id: str, run_id: str) -> DagRun | None:
        conf = next((conf for dag, run, conf in self._actions.started if (dag, run) == (dag_id, run_id)), None)
        if conf is None:
            return None
        return DagRun(dag_id, run_id, self._actions.end_state, None, None, conf, triggered_by="ada")

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        return present(self.find_run(dag_id, run_id))

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        names = [declared.name for declared in OPERATIONS.values() if dag_id.endswith(f"__{declared.kind}")]
        return tuple(TaskInstance(name, self._actions.end_state, 1, None, None, None) for name in names)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        return self._actions.results


@dataclass
class FakeActions:
    """An Airflow that records started runs. A run is started once and has the state `end_state` immediately."""

    started: list[tuple[str, str, dict[str, Any]]] = dataclasses.field(default_factory=list)
    outage: str = ""
    forms: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    results: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    end_state: str = "success"
    approvals: tuple[PendingApproval, ...] = ()

    def connect(self, request: Request) -> Callable[[], AirflowApi]:
        return lambda: FakeAirflow(self)

    def unavailable_reason(self) -> str:
        return self.outage

    def paused_dags(self) -> frozenset[str] | None:
        return frozenset()

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        return self.approvals

    def airflow_address(self, request: Request) -> str | None:
        return ""


_console: ContextVar[Console] = ContextVar("console")


class _ConsoleOfRequest:
    """Has what the console of the current request has, and is the authenticator that its routes depend on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_console.get(), name)

    @property
    def authenticator(self) -> _ConsoleOfRequest:
        return self

    async def identify(self, request: Request) -> Person:
        person: Person = await _console.get().authenticator.identify(request)
        return person

    def login_address(self, request: Request) -> str | None:
        return _console.get().authenticator.login_address(request)


@cache
def _application() -> FastAPI:
    """The application of all consoles of a process: building its routes takes longer than most tests do."""
    return build_console(cast(Console, _ConsoleOfRequest()))


@dataclass(frozen=True, slots=True)
class _ApplicationOf:
    """The application over one console."""

    console: Console

    @property
    def routes(self) -> list[BaseRoute]:
        return _application().routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        before = _console.set(self.console)
        try:
            await _application()(scope, receive, send)
        finally:
            _console.reset(before)


@dataclass
class ConsoleHarness:
    """A console, its storage, and a client that sends requests as any person."""

    catalog: Catalog
    objects: ObjectStore
    people: dict[str, Person]
    actions: FakeActions
    client: TestClient

    def get(self, path: str, *, by: str | None = "ada", **headers: str) -> Any:
        """Returns the response to a person."""
        person_header = {} if by is None else {"X-Person": by}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.get(path, headers={"accept": "text/html", **person_header, **names}, follow_redirects=False)

    def view(self, path: str, *, by: str = "ada") -> dict[str, Any]:
        """Returns the view of a page as JSON."""
        separator = "&" if "?" in path else "?"
        answer = self.get(f"{path}{separator}format=json", by=by)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()["view"]
        return shown

    def write_heartbeat(self, pipeline: str, **changes: Any) -> None:
        """Writes the heartbeat of a running stream without backlog."""
        write_process_heartbeat(self.objects, paths.pipeline_control(pipeline), pipeline, **changes)


def write_process_heartbeat(objects: ObjectStore, control: str, name: str, **changes: Any) -> None:
    """Writes the heartbeat of a control folder."""
    batch = {"batch_id": 812, "last_batch_at": iso_now(), "backlog_files": 0}
    put_heartbeat(objects, control, name, **{"epoch": 14, "run": f"{name}__stream/r/ingest/1"} | batch | changes)


def console_harness(
    project: Path,
    *,
    storage: Callable[[], ObjectStore] | None = None,
    clock: Callable[[], float] | None = None,
    renderer: PageRenderer | None = None,
    streams: WidgetStreams | None = None,
) -> ConsoleHarness:
    """Returns a console over the project of DELTAWORKS_PROJECT, which must be this one."""
    catalog = load_catalog(root=project, skip_invalid=True)
    objects = open_objects(catalog.environment.lake)
    people = {
        "ada": person(),
        "vic": person("vic", starts=()),
        "eve": person("eve", reads=("edits__stream",), starts=()),
    }
    acts = FakeActions()
    cache_options = {} if storage else {"wait_seconds": _WAIT_SECONDS}
    records = CachedObjects(storage or (lambda: objects), **cache_options, **({"clock": clock} if clock else {}))
    console = Console(
        authenticator=FakeAuthenticator(people),
        actions=acts,
        records=records,
        catalog=CatalogCache(lambda: load_catalog(root=project, skip_invalid=True)),
        renderer=renderer,
    )
    # Streams of widgets belong to one application; all others share one, whose routes take long to build.
    application = _ApplicationOf(console) if streams is None else build_console(console, streams=streams)
    return ConsoleHarness(catalog, objects, people, acts, TestClient(application))


def page_context(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    values: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    by: Person | None = None,
    now: datetime | None = None,
) -> PageContext:
    """Returns a page context over objects, each read again."""
    return PageContext(
        person=by or person(),
        catalog=catalog,
        objects=CachedObjects(lambda: objects, wait_seconds=_WAIT_SECONDS).reader(),
        now=now or utc_now(),
        values=values or {},
        query=query or {},
        paused_dags=frozenset(),
        airflow="",
    )


def ago(seconds: float) -> str:
    """Returns a time in the past as records store it."""
    return (utc_now() - timedelta(seconds=seconds)).isoformat()
