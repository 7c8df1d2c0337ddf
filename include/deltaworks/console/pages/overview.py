"""The start page: open issues, then all streams, relays and other processes, unhealthy ones first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import orjson

from deltaworks.console.host import PendingApproval
from deltaworks.console.page_context import PageContext, parse_instant, read_or_none
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.erasures import NamespaceCounts, approaching_deadlines
from deltaworks.console.pages.open_issues import (
    OpenIssue,
    health_checked_at,
    is_storage_outage,
    open_issues,
    unhealthy_since,
)
from deltaworks.control import paths
from deltaworks.control.health import report as health_report
from deltaworks.control.health.processes import channel_warning, process_reports
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.verdicts import Verdict, unreadable_verdict
from deltaworks.control.summaries.stream import recent_freshness
from deltaworks.errors import DeltaworksError
from deltaworks.specs.dag_ids import HEALTH_DAG

_STATE_ORDER = ("unhealthy", "unknown", "lagging", "stopping", "starting", "stopped", "paused", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A relay, stream or other process.

    The health check first recorded the verdict at `since`; None if it has not yet. The oldest waiting input arrived at
    `waiting_since`, and the source deletes it at `source_expires_at`. Rows are those of the last hour; `rows_by_hour`
    covers the last 24 hours. Of the tables that are `held`, those that failed are `suspended`, and a person resumes
    them. The delay from landing to bronze within the last hour is `bronze_p50_seconds` and `bronze_p95_seconds`. The
    person may restart the process if `may_restart` is set. The state is `unknown` while the storage does not answer.
    """

    kind: str
    name: str
    dag_id: str
    state: str
    cause: str
    detail: str
    next_step: str
    since: datetime | None
    heartbeat_at: datetime | None
    waiting_since: datetime | None
    source_expires_at: datetime | None
    rows: int | None
    quarantined: int | None
    held: tuple[str, ...]
    suspended: tuple[str, ...]
    error: str
    dead_letters: int | None
    spark_ui: str
    may_restart: bool
    bronze_p50_seconds: float | None = None
    bronze_p95_seconds: float | None = None
    rows_by_hour: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Content of the start page.

    The health check last ran at `checked_at`. Namespaces with approaching deadlines are `erasures`; `approvals` are
    pending.
    """

    issues: tuple[OpenIssue, ...]
    streams: tuple[ProcessRow, ...]
    other_processes: tuple[ProcessRow, ...]
    checked_at: datetime | None
    warning: str
    only: str
    hidden_rows: int
    erasures: tuple[NamespaceCounts, ...] = ()
    approvals: tuple[PendingApproval, ...] = ()

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        bad = sum(row.state == "unhealthy" for row in (*self.streams, *self.other_processes))
        waiting = f", {len(self.approvals)} pending approvals" if self.approvals else ""
        return f"{len(self.issues)} open issues, {bad} unhealthy{waiting}"


def view(context: PageContext) -> Overview:
    """Returns the current page for the person. `?only=words` filters the rows."""
    reports, verdicts = visible_reports(context)
    needs = open_issues(context, reports, verdicts)
    rows = [process_row(context, item, verdicts) for item in reports]
    only = context.query.get("only", "").strip()
    shown_rows = [row for row in rows if only.lower() in f"{row.kind} {row.name} {row.state} {row.cause}".lower()]
    shown_rows.sort(key=lambda row: (_STATE_ORDER.index(row.state), row.name))
    return Overview(
        issues=tuple(needs),
        streams=tuple(row for row in shown_rows if row.kind == "stream"),
        other_processes=tuple(row for row in shown_rows if row.kind != "stream"),
        checked_at=health_checked_at(context),
        warning=channel_warning(context.catalog.environment.alerts),
        only=only,
        hidden_rows=len(rows) - len(shown_rows),
        erasures=approaching_deadlines(context),
        approvals=context.pending_approvals,
    )


def visible_reports(context: PageContext) -> tuple[list[Report], Mapping[str, Verdict]]:
    """Returns the current reports the person may see, and the stored verdicts of the health check.

    Only the stored verdicts have start times.
    """
    reports, previous = _declared_reports(context, only=lambda subject: True)
    if context.person.may_read(HEALTH_DAG):
        # Collectors and vaults have no DAG or pipeline, so readers of the health DAG see them.
        reports += process_reports(context.catalog, context.objects, previous=previous, now=context.now)
    return reports, previous


def stream_report(context: PageContext, pipeline: str) -> tuple[Report | None, Mapping[str, Verdict]]:
    """Returns the current report of a stream, None if it does not exist, and the stored verdicts of the health
    check."""
    reports, previous = _declared_reports(
        context, only=lambda subject: (subject.kind, subject.name) == ("stream", pipeline)
    )
    return next(iter(reports), None), previous


def _declared_reports(
    context: PageContext, *, only: Callable[[Subject], bool]
) -> tuple[list[Report], Mapping[str, Verdict]]:
    """Returns reports of streams, relays and other processes, with valid or invalid declarations."""
    objects, catalog = context.objects, context.catalog
    valid_subjects = [
        item for item in health_report.subjects(catalog) if context.person.may_read(item.dag_id) and only(item)
    ]
    objects.fetch([paths.health_verdicts(), *(key for subject in valid_subjects for key in _object_keys(subject))])
    try:
        previous = health_report.read_verdicts(objects)
    except DeltaworksError:
        previous = {}
    reports = health_report.with_waiting_causes(
        catalog, [_report(context, subject, previous) for subject in valid_subjects]
    )
    invalid_reports = (
        health_report.invalid_spec_reports(catalog, objects, previous=previous, now=context.now)
        if catalog.broken
        else []
    )
    reports += [item for item in invalid_reports if context.person.may_read(item.subject.dag_id) and only(item.subject)]
    return reports, previous


def _report(context: PageContext, subject: Subject, previous: Mapping[str, Verdict]) -> Report:
    """Returns a current report. An incompatible heartbeat gives an unhealthy verdict, so that the page does not
    fail."""
    paused = context.paused_dags
    try:
        return health_report.check_subject(
            subject,
            context.objects,
            previous=previous,
            now=context.now,
            paused=lambda dag_id: None if paused is None else dag_id in paused,
        )
    except (ValueError, TypeError, AttributeError) as error:
        before = previous.get(subject.key)
        verdict = unreadable_verdict(error, kind=subject.kind, name=subject.name, now=context.now, previous=before)
        return Report(subject, verdict, None)


def _object_keys(subject: Subject) -> list[str]:
    control = subject.control
    keys = [paths.heartbeat(control), paths.stop_request(control)]
    if subject.kind == "stream":
        keys += [paths.input_rate(control), paths.throughput(control)]
        keys += [paths.recent_batches(subject.name), paths.stream_hours(subject.name)]
    return keys


def process_row(context: PageContext, item: Report, verdicts: Mapping[str, Verdict]) -> ProcessRow:
    """Returns a process as a row."""
    verdict, heartbeat, subject = item.verdict, item.heartbeat, item.subject
    hour = item.throughput.last_hour(context.now)
    time_left = verdict.time_left_seconds
    is_stream = subject.kind == "stream"
    fresh = read_or_none(lambda: recent_freshness(context.objects, subject.name, context.now)) if is_stream else None
    is_unread = is_storage_outage(context, item)
    return ProcessRow(
        kind=subject.kind,
        name=subject.name,
        dag_id=subject.dag_id,
        state="unknown" if is_unread else verdict.state,
        cause=verdict.cause,
        detail="Its records cannot be read now." if is_unread else verdict.detail,
        next_step="" if is_unread else verdict.next_step,
        since=None if is_unread else unhealthy_since(item, verdicts),
        heartbeat_at=parse_instant(heartbeat.written_at if heartbeat else None),
        waiting_since=parse_instant(heartbeat.oldest_pending_at if heartbeat else None),
        source_expires_at=None
        if time_left is None
        else (context.now + timedelta(seconds=time_left)).replace(microsecond=0),
        rows=hour.rows if is_stream else None,
        quarantined=hour.quarantined if is_stream else None,
        held=tuple(str(held.get("table", "")) for held in heartbeat.held) if heartbeat else (),
        suspended=tuple(str(held.get("table", "")) for held in heartbeat.held if held.get("reason") == "suspended")
        if heartbeat
        else (),
        error=str((heartbeat.error or {}).get("condition", "")) if heartbeat else "",
        dead_letters=heartbeat.dead_letters if heartbeat else None,
        spark_ui=(heartbeat.ui or "") if heartbeat else "",
        may_restart=context.person.may_start(subject.dag_id),
        bronze_p50_seconds=fresh[0] if fresh else None,
        bronze_p95_seconds=fresh[1] if fresh else None,
        rows_by_hour=_rows_by_hour(context, subject.name) if is_stream else (),
    )


def _rows_by_hour(context: PageContext, pipeline: str) -> tuple[float | None, ...]:
    """Returns the rows of each of the last 24 hours; None for hours without a batch."""
    stored = read_or_none(lambda: context.objects.get(paths.stream_hours(pipeline)))
    return _parse_rows_by_hour(stored.data, context.now.replace(minute=0, second=0, microsecond=0)) if stored else ()


@lru_cache(maxsize=256)
def _parse_rows_by_hour(data: bytes, last: datetime) -> tuple[float | None, ...]:
    """Returns the rows of the 24 hours that end with `last`. Cached, because the object covers 60 days."""
    hours = read_or_none(lambda: orjson.loads(data)["hours"][-25:]) or ()
    by_hour = read_or_none(lambda: {parse_instant(hour["at"]): float(hour["rows"]) for hour in hours})
    return tuple(by_hour.get(last - timedelta(hours=back)) for back in range(23, -1, -1)) if by_hour else ()


PAGE = Page(name="overview", route="/", title="Overview", view=view, menu="Overview")
