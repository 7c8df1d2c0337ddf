"""The page of gold tables: freshness of each table against its declared age, its inputs, and its dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from deltaworks.alerts.raising import open_subjects
from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.dashboards import DashboardRow, dashboard_rows
from deltaworks.console.paging import Rows, page_rows, read_summary
from deltaworks.control import paths
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.jobs import GoldVerification
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.errors import DeltaworksError
from deltaworks.operations.gold import gold_states
from deltaworks.specs.base import describe_duration

_GOLD_ALERTS = ("GOLD_STALE", "GOLD_REFRESH_FAILING", "GOLD_CHECK_FAILED", "GOLD_DIFFERS")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRow:
    """A gold table with its state, see `GoldState`. Only open alerts are listed.

    Partitions were last compared with the SQL at `verified_at`; rows of `differing` partitions differed then.
    `late_rows` of frozen dates, by date, are not in it.
    """

    pipeline: str
    name: str
    description: str
    reads: tuple[str, ...]
    state: str
    fresh_at: datetime | None
    waiting_since: datetime | None
    stale_at: datetime | None
    max_age_minutes: float | None
    lag: str
    is_refreshed_by_stream: bool
    rows: int | None
    bytes: int | None
    score: int | None
    alerts: tuple[str, ...]
    verified_at: datetime | None = None
    differing: Mapping[str, int] = field(default_factory=dict)
    not_compared: str = ""
    late_rows: Mapping[str, int] = field(default_factory=dict)
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
    "verified": lambda row: row.verified_at,
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
    keys = [
        key(name, table.name)
        for name, spec in specs.items()
        for table in spec.gold.tables
        for key in (paths.gold_state, paths.gold_verification)
    ]
    heartbeats = (paths.heartbeat(paths.pipeline_control(name)) for name in specs)
    inputs = {name for spec in specs.values() for name, _ in spec.gold.cross_pipeline_inputs} | specs.keys()
    batches = (paths.recent_batches(name) for name in sorted(inputs))
    context.objects.fetch([*keys, *heartbeats, *batches, *(tables_summary(name) for name in specs)])
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
                ("compare gold with its SQL", f"deltaworks gold verify {pipeline}"),
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
    spec = context.catalog.pipelines[pipeline]
    states = gold_states(context.objects, spec, now=context.now)
    rows = []
    for table in spec.gold.tables:
        state_now = states[table.name]
        health: TableSummary | None = measured.get(table.name)
        subject, lag = f"{pipeline}.{table.name}", spec.gold.lag_of(table.name)
        verified = read_summary(context, GoldVerification, paths.gold_verification(pipeline, table.name)).summary
        rows.append(
            GoldRow(
                pipeline=pipeline,
                name=table.name,
                description=table.description,
                reads=tuple(table.reads),
                state=state_now.state,
                fresh_at=state_now.fresh_at,
                waiting_since=state_now.waiting_since,
                stale_at=state_now.stale_at,
                max_age_minutes=state_now.max_age_minutes,
                lag="" if lag is None else describe_duration(lag),
                is_refreshed_by_stream=table in spec.gold.stream_refreshed_tables,
                rows=health.rows if health else None,
                bytes=health.bytes if health else None,
                score=health.score if health else None,
                failing_since=state_now.failing_since,
                error=state_now.error,
                next_step=state_now.next_step,
                late_rows=state_now.late_rows,
                verified_at=None if verified is None else verified.newest_at,
                differing={} if verified is None else verified.differing,
                not_compared="" if verified is None else verified.reason,
                alerts=tuple(cause for cause, subjects in alert_subjects.items() if subject in subjects),
            )
        )
    return rows


PAGES = (
    Page(name="gold", route="/gold", title="Gold and dashboards", view=view_all, menu="Gold"),
    Page(name="pipeline_gold", route="/gold/{pipeline}", title="Gold of {pipeline}", view=view),
)
