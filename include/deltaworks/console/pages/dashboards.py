"""The pages of declared dashboards: their list, and each one as a document that a child process draws."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from deltaworks.console.page_context import PageContext, PageError, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.console.rendering import asset_path
from deltaworks.console.table_reads import DASHBOARD_LIMITS, read_tables, release_while_waiting
from deltaworks.dashboards.spans import parse_span
from deltaworks.errors import ConfigError
from deltaworks.specs.dashboards import DashboardSpec

_INVALID, _FAILED, _UNAVAILABLE = 400, 500, 503
#: Drawn pages in memory, and characters of a filter's value.
_MAX_PAGES, _MAX_VALUE = 32, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRow:
    """A declared dashboard."""

    pipeline: str
    name: str
    title: str
    description: str
    panels: int
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardsView:
    """The declared dashboards of the pipelines that the person may see."""

    dashboards: tuple[DashboardRow, ...]


def dashboard_rows(context: PageContext, pipelines: Iterable[str]) -> tuple[DashboardRow, ...]:
    """Returns the dashboards of some pipelines; those with invalid declarations have none."""
    return tuple(
        DashboardRow(
            pipeline=name,
            name=dashboard.name,
            title=dashboard.title or f"{name} {dashboard.name}",
            description=dashboard.description,
            panels=len(dashboard.panels),
            command=f"deltaworks dashboard {name} {dashboard.name} --html {dashboard.name}.html",
        )
        for name in pipelines
        if name in context.catalog.pipelines
        for dashboard in context.catalog.pipelines[name].dashboards
    )


def view_all(context: PageContext) -> DashboardsView:
    """Returns the list of dashboards."""
    return DashboardsView(dashboards=dashboard_rows(context, context.pipelines()))


class _DrawnDashboards:
    """Draws one dashboard at a time, and keeps the current ones, so that ten readers cost as much as one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str, str, str], tuple[float, str, str]] = {}

    def latest(self, context: PageContext, dashboard: DashboardSpec, filters: str) -> str:
        """Returns the current page of a dashboard with these filters, drawn again once its refresh interval is over or
        its spec has changed.
        """
        pipeline = context.pipeline
        key = (str(context.catalog.root), pipeline, dashboard.name, filters)
        declared = context.catalog.pipelines[pipeline].fingerprint()
        page = self._current(key, declared)
        if page is not None:
            return page
        with self._locked():
            page = self._current(key, declared)  # another thread may have drawn it meanwhile
            if page is None:
                page = _draw(pipeline, dashboard, filters)
                self._pages.pop(key, None)
                while len(self._pages) >= _MAX_PAGES:
                    self._pages.pop(next(iter(self._pages)))
                self._pages[key] = (time.monotonic() + dashboard.refresh_seconds - 1, declared, page)
            return page

    def for_span(self, pipeline: str, dashboard: DashboardSpec, filters: str, *, since: str, until: str) -> str:
        """Draws a dashboard for a fixed time span, and does not keep it."""
        with self._locked():
            return _draw(pipeline, dashboard, filters, since=since, until=until)

    def _current(self, key: tuple[str, str, str, str], declared: str) -> str | None:
        due_at, spec_fingerprint, page = self._pages.get(key, (0.0, "", ""))
        return page if time.monotonic() < due_at and spec_fingerprint == declared else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with release_while_waiting():
            acquired = self._lock.acquire(timeout=DASHBOARD_LIMITS.wait_seconds)
        if not acquired:
            raise PageError("Other dashboards are being drawn. Try again in a minute.", status=_UNAVAILABLE)
        try:
            yield
        finally:
            self._lock.release()


def _draw(pipeline: str, dashboard: DashboardSpec, filters: str, *, since: str = "", until: str = "") -> str:
    answer = read_tables(
        "dashboard",
        limits=DASHBOARD_LIMITS,
        pipeline=pipeline,
        name=dashboard.name,
        since=since,
        until=until,
        filters=filters,
        script=_script("htmx.min.js"),
        segments_script=_script("segments.js"),
    )
    if answer.unfinished:
        raise PageError(
            f"The dashboard was not drawn within {DASHBOARD_LIMITS.seconds:.0f} s, so its process was ended. Choose a "
            "shorter time span with ?from= and ?to=, or simplify the queries of its panels.",
            status=_UNAVAILABLE,
        )
    if answer.problem:
        raise PageError(f"The dashboard could not be drawn. {answer.problem}", status=_FAILED)
    return answer.document


def _script(name: str) -> str:
    """Returns the address of a script relative to a dashboard's; empty if the file is missing."""
    path = asset_path(name)
    return f"../..{path}" if path else ""


_DRAWN: Final = _DrawnDashboards()


def view(context: PageContext) -> str:
    """Returns the dashboard in the address as an HTML page.

    Raises:
        PageMissingError: it is not declared, or the person may not see its pipeline; PageError: the time span is
            invalid, or the dashboard cannot be drawn.
    """
    pipeline, name = context.pipeline, context.values["name"]
    spec = context.catalog.pipelines.get(pipeline)
    dashboard = next((item for item in (spec.dashboards if spec else ()) if item.name == name), None)
    if dashboard is None:
        raise PageMissingError(f"Pipeline {pipeline!r} declares no dashboard {name!r}.")
    since, until = context.query.get("from", ""), context.query.get("to", "")
    try:
        parse_span(dashboard, since=since, until=until)
    except ConfigError as error:
        raise PageError(error.message, status=_INVALID) from error
    chosen = {name: context.query[name][:_MAX_VALUE] for name in dashboard.filters if context.query.get(name)}
    filters = json.dumps(chosen)
    if since or until:
        return _DRAWN.for_span(pipeline, dashboard, filters, since=since, until=until)
    return _DRAWN.latest(context, dashboard, filters)


PAGES = (
    Page(name="dashboards", route="/dashboards", title="Dashboards", view=view_all),
    Page(name="dashboard", route="/dashboards/{pipeline}/{name}", title="Dashboard {name}", view=view, document=True),
)
