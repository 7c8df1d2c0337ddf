"""The page of gold tables: freshness of each table against its declared age, its inputs, and its dashboards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from deltaworks.alerts.raising import open_subjects
from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant, read_or_none
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.dashboards import DashboardRow, dashboard_rows
from deltaworks.console.paging import Rows, page_rows, read_summary
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.errors import DeltaworksError

_GOLD_ALERTS = ("GOLD_STALE", "GOLD_REFRESH_FAILING", "GOLD_CHECK_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRow:
    """A gold table. Its state is `failing`, `stale`, `never built`, `fresh`, or `built` without a declared age.

    The last build that found the table up to date was at `fresh_at`. The declared age is exceeded at `stale_at`. Builds
    fail since `failing_since` with `error`, whose next step is `next_step`. Only open alerts are listed.
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
    failing_since: datetime | None = None
    error: str = ""
    next_step: str = ""


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
        states = [row.state for row in self.listed.rows]
        return f"{states.count('failing')} gold tables cannot be built, {states.count('stale')} are stale"


_ORDER = ("failing", "stale", "never built", "built", "fresh")
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
    heartbeats = (paths.heartbeat(paths.pipeline_control(name)) for name in specs)
    context.objects.fetch([*keys, *heartbeats, *(tables_summary(name) for name in specs)])
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
    stream_failures = _stream_failures(context, pipeline)
    rows = []
    for table in context.catalog.pipelines[pipeline].gold.tables:
        record = _record(context, pipeline, table.name)
        fresh_at = parse_instant(record.get("at"))
        # The stream retries a table that it cannot refresh; a scheduled build records its failure in the lake.
        failure = stream_failures.get(table.name) or record
        failing_since = parse_instant(failure.get("failing_since") or failure.get("since"))
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
                state="failing" if failing_since else _state(fresh_at, stale_at, context.now),
                fresh_at=fresh_at,
                stale_at=stale_at,
                max_age_minutes=max_age_minutes,
                refresh_seconds=table.refresh_seconds,
                rows=health.rows if health else None,
                bytes=health.bytes if health else None,
                score=health.score if health else None,
                failing_since=failing_since,
                error=f"[{failure.get('condition')}] {failure.get('message')}" if failing_since else "",
                next_step=str(failure.get("hint") or "") if failing_since else "",
                alerts=tuple(cause for cause, subjects in alert_subjects.items() if subject in subjects),
            )
        )
    return rows


def _record(context: PageContext, pipeline: str, table: str) -> dict[str, Any]:
    """Returns the record of a table's last build; empty if there is none, or if it cannot be read."""
    try:
        item = context.objects.get(paths.gold_state(pipeline, table))
        record = json.loads(item.data) if item else {}
    except (DeltaworksError, ValueError, TypeError):
        return {}
    return record if isinstance(record, dict) else {}


def _stream_failures(context: PageContext, pipeline: str) -> dict[str, dict[str, Any]]:
    """Returns the tables that the pipeline's stream cannot refresh at present, each with its error."""
    heartbeat = read_or_none(lambda: read_heartbeat(context.objects, paths.heartbeat(paths.pipeline_control(pipeline))))
    return {str(failure.get("table")): failure for failure in heartbeat.gold_failures} if heartbeat else {}


def _state(fresh_at: datetime | None, stale_at: datetime | None, now: datetime) -> str:
    if fresh_at is None:
        return "never built"
    if stale_at is None:
        return "built"
    return "stale" if now > stale_at else "fresh"


PAGES = (
    Page(name="gold", route="/gold", title="Gold and dashboards", view=view_all, menu="Gold"),
    Page(name="pipeline_gold", route="/gold/{pipeline}", title="Gold of {pipeline}", view=view),
)
