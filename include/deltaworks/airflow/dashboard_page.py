"""API server pages that show declared dashboards to users who may read the DAG of the pipeline's stream.

They are part of the console's application. Airflow does not protect a plugin's application, so every route here checks
access itself.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from deltaworks.airflow import names
from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.page_access import HEADERS, may_read_runs
from deltaworks.airflow.server_paths import server_path
from deltaworks.charts.drawing import Span
from deltaworks.dashboards.spans import parse_span
from deltaworks.errors import ConfigError
from deltaworks.specs.groups import group_of
from deltaworks.specs.project import load_catalog

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.dashboards import DashboardSpec

_STYLE = "body{font:15px system-ui;margin:1.5rem;color-scheme:light dark}li{margin:.4rem 0}small{opacity:.7}"
#: A request that waits longer than this for other renders gets a 503: the API server needs its threads for other
#: requests.
_WAIT_SECONDS = 30.0


class _PageCache:
    """Caches rendered pages, so that ten readers cost as much as one. Renders one page at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str], tuple[float, str, str]] = {}

    def latest(self, catalog: Catalog, pipeline: str, dashboard: DashboardSpec, span: Span) -> str:
        """Returns the current page of a dashboard, rendered again once its refresh interval is over or its spec has
        changed.
        """
        key, declared = (pipeline, dashboard.name), catalog.pipelines[pipeline].fingerprint()
        page = self._cached(key, declared)
        if page is not None:
            return page
        with self._locked():
            page = self._cached(key, declared)  # another thread may have rendered it meanwhile
            if page is None:
                page = _render(catalog, pipeline, dashboard, span, refresh_seconds=dashboard.refresh_seconds)
                self._pages[key] = (time.monotonic() + dashboard.refresh_seconds - 1, declared, page)
            return page

    def for_span(self, catalog: Catalog, pipeline: str, dashboard: DashboardSpec, span: Span) -> str:
        """Renders a dashboard for a fixed time span, without the cache."""
        with self._locked():
            return _render(catalog, pipeline, dashboard, span)

    def _cached(self, key: tuple[str, str], declared: str) -> str | None:
        due_at, spec_fingerprint, page = self._pages.get(key, (0.0, "", ""))
        return page if time.monotonic() < due_at and spec_fingerprint == declared else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise HTTPException(503, "Other dashboards are being rendered. Try again in a minute.")
        try:
            yield
        finally:
            self._lock.release()


def add_dashboards(app: FastAPI) -> None:
    """Adds the dashboard routes to the plugin's application."""
    pages = _PageCache()

    @app.get("/dashboards", dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])
    def list_dashboards(user: GetUserDep) -> Response:
        return HTMLResponse(_list_page(load_catalog(skip_invalid=True), user), headers=HEADERS)

    @app.get("/dashboards/{pipeline}/{name}", dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])
    def show_dashboard(request: Request, pipeline: str, name: str, user: GetUserDep) -> Response:
        catalog = load_catalog(skip_invalid=True)
        # Checked first: without access to a pipeline, a user must not learn whether it exists.
        if not _may_read(catalog, pipeline, user):
            raise HTTPException(403, "You may not read the DAG of this pipeline's stream.")
        dashboards = catalog.pipelines[pipeline].dashboards if pipeline in catalog.pipelines else ()
        dashboard = next((item for item in dashboards if item.name == name), None)
        if dashboard is None:
            raise HTTPException(404, f"Pipeline {pipeline!r} declares no dashboard {name!r}.")
        query = request.query_params
        try:
            span = parse_span(dashboard, since=query.get("from", ""), until=query.get("to", ""))
        except ConfigError as error:
            raise HTTPException(400, error.message) from error
        page = (pages.for_span if query.get("from") or query.get("to") else pages.latest)(
            catalog, pipeline, dashboard, span
        )
        return HTMLResponse(page, headers=HEADERS)


def _may_read(catalog: Catalog, pipeline: str, user: Any) -> bool:
    return may_read_runs(names.stream_dag_id(pipeline, group_of(catalog, pipeline)), user)


def _list_page(catalog: Catalog, user: Any) -> str:
    entries = "".join(
        f'<li><a href="{_escape(server_path(f"/deltaworks/dashboards/{pipeline}/{item.name}"))}">'
        f"{_escape(item.title or f'{pipeline} {item.name}')}</a> <small>{_escape(pipeline)}</small></li>"
        for pipeline, spec in catalog.pipelines.items()
        if spec.dashboards and _may_read(catalog, pipeline, user)
        for item in spec.dashboards
    )
    listed = (
        f"<ul>{entries}</ul>" if entries else ("<p>No dashboard is declared, or you may not read their pipelines.</p>")
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Dashboards</title>'
        f"<style>{_STYLE}</style><h1>Dashboards</h1>{listed}</html>"
    )


def _render(
    catalog: Catalog, pipeline: str, dashboard: DashboardSpec, span: Span, *, refresh_seconds: int | None = None
) -> str:
    # Imported at the first page: they load DuckDB and Arrow. Every Airflow component loads the plugin, but only one
    # serves pages.
    from deltaworks.dashboards.page import dashboard_page
    from deltaworks.operations.dashboard_data import load_dashboard

    set_environment_keys(catalog.environment)
    answer = load_dashboard(catalog, pipeline, dashboard, span)
    links = f'<nav><a href="{_escape(server_path("/deltaworks/dashboards"))}">all dashboards</a></nav>'
    return dashboard_page(answer, refresh_seconds=refresh_seconds, links=links)


def _escape(value: Any) -> str:
    return html.escape(str(value), quote=True)
