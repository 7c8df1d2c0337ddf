"""The page of gold tables: freshness of each table against its declared age, its inputs, and its dashboards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.alerts.raising import open_subjects
from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.dashboards import DashboardRow, dashboard_rows
from deltaworks.console.paging import Rows, page_rows, read_summary
from deltaworks.control import paths
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.errors import DeltaworksError

_GOLD_ALERTS = ("GOLD_STALE", "GOLD_REFRESH_FAILING", "GOLD_CHECK_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRow:
    """A gold table. Its state is `fresh`, `stale`, `never built`, or empty without a declared age.

    The last build that found the table up to date was at `fresh_at`. The declared age is exceeded at `stale_at`. Only
    open alerts are listed.
    """

    pipeline: str
    name: str
    description: str
    reads: tuple[str, ...]
    state: str
    fresh_at: datetime | None
    stale_at: datetime | None
    max_age_minutes: float | None
    refresh_seconds: float | None
    rows: int | None
    bytes: int | None
    score: int | None
    alerts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldView:
    """Content of the gold page, for one pipeline or all. Stale tables come first."""

    pipeline: str
    listed: Rows[GoldRow]
    dashboards: tuple[DashboardRow, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{sum(row.state == 'stale' for row in self.listed.rows)} gold tables are stale"


_ORDER = ("stale", "never built", "fresh", "")
_SORT_KEYS = {
    "table": lambda row: (row.pipeline, row.name),
    "state": lambda row: (not row.alerts, _ORDER.index(row.state), row.pipeline, row.name),
    "fresh": lambda row: row.fresh_at,
    "rows": lambda row: row.rows,
    "size": lambda row: row.bytes,
}


def view_all(context: PageContext) -> GoldView:
    """Returns the gold tables of every pipeline the person may see."""
    return _gold(context, [name for name in context.pipelines() if name in context.catalog.pipelines], pipeline="")


def view(context: PageContext) -> GoldView:
    """Returns the gold tables of the pipeline in the address."""
    if context.pipeline not in context.catalog.pipelines:
        raise PageMissingError(f"{context.pipeline} is declared wrongly: `deltaworks pipelines check` says how.")
    return _gold(context, [context.pipeline], pipeline=context.pipeline)


def _gold(context: PageContext, pipelines: list[str], *, pipeline: str) -> GoldView:
    specs = {name: context.catalog.pipelines[name] for name in pipelines}
    keys = [paths.gold_state(name, table.name) for name, spec in specs.items() for table in spec.gold.tables]
    context.objects.fetch([*keys, *(tables_summary(name) for name in specs)])
    alert_subjects = {cause: _subjects(context, cause) for cause in _GOLD_ALERTS}
    rows = [row for name in specs for row in _rows(context, name, alert_subjects)]
    return GoldView(
        pipeline=pipeline,
        listed=page_rows(
            context, rows, keys=_SORT_KEYS, sort="state", text=lambda row: f"{row.pipeline}.{row.name} {row.state}"
        ),
        dashboards=dashboard_rows(context, pipelines),
        commands=(
            (
                ("show what a build would rebuild", f"deltaworks gold build {pipeline}"),
                ("rebuild complete tables in shadows", f"deltaworks gold refresh {pipeline}"),
            )
            if pipeline
            else ()
        ),
    )


def _subjects(context: PageContext, cause: str) -> set[str]:
    try:
        return open_subjects(context.objects, cause)
    except DeltaworksError:
        return set()


def _rows(context: PageContext, pipeline: str, alert_subjects: dict[str, set[str]]) -> list[GoldRow]:
    summary = read_summary(context, TablesSummary, tables_summary(pipeline)).summary
    measured = {table.name: table for table in summary.tables} if summary else {}
    rows = []
    for table in context.catalog.pipelines[pipeline].gold.tables:
        fresh_at = _fresh_at(context, pipeline, table.name)
        max_age_minutes = table.checks.max_age_minutes
        stale_at = fresh_at + timedelta(minutes=max_age_minutes) if fresh_at and max_age_minutes is not None else None
        health: TableSummary | None = measured.get(table.name)
        subject = f"{pipeline}.{table.name}"
        rows.append(
            GoldRow(
                pipeline=pipeline,
                name=table.name,
                description=table.description,
                reads=tuple(table.reads),
                state=_state(fresh_at, stale_at, context.now),
                fresh_at=fresh_at,
                stale_at=stale_at,
                max_age_minutes=max_age_minutes,
                refresh_seconds=table.refresh_seconds,
                rows=health.rows if health else None,
                bytes=health.bytes if health else None,
                score=health.score if health else None,
                alerts=tuple(cause for cause, subjects in alert_subjects.items() if subject in subjects),
            )
        )
    return rows


def _fresh_at(context: PageContext, pipeline: str, table: str) -> datetime | None:
    try:
        item = context.objects.get(paths.gold_state(pipeline, table))
        return None if item is None else parse_instant(json.loads(item.data)["at"])
    except (DeltaworksError, ValueError, KeyError, TypeError):
        return None


def _state(fresh_at: datetime | None, stale_at: datetime | None, now: datetime) -> str:
    if fresh_at is None:
        return "never built"
    if stale_at is None:
        return ""
    return "stale" if now > stale_at else "fresh"


PAGES = (
    Page(name="gold", route="/gold", title="Gold and dashboards", view=view_all, menu="Gold"),
    Page(name="pipeline_gold", route="/gold/{pipeline}", title="Gold of {pipeline}", view=view),
)
