"""The first page: what needs somebody, then every stream, relay and process beside them, the unhealthy first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import orjson

from deltaworks.console.alert_subjects import HEALTH_DAG
from deltaworks.console.look import Look
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.erasures import NamespaceCounts, near_deadlines
from deltaworks.console.pages.needs import Need, health_judged_at, needs_of, since_of
from deltaworks.console.readings import instant, tolerant
from deltaworks.console.seams import Question
from deltaworks.control import paths, summary_paths
from deltaworks.control.health import report as health_report
from deltaworks.control.health.channels import channel_warning
from deltaworks.control.health.processes import process_reports
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.verdicts import Verdict, unreadable_verdict
from deltaworks.control.summaries.stream import recent_freshness
from deltaworks.errors import DeltaworksError

_ORDER = ("unhealthy", "lagging", "stopping", "starting", "stopped", "paused", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One relay, stream or other process.

    `since` is when the health check first judged it so, None before it has. `waiting_since` is the instant of the
    oldest that waits, `gone_at` when the source forgets it. Rows are of the last hour; `bronze_..._seconds` are from
    landing to bronze within it; `day` are rows of each of the last 24 hours. `may_act` says whether the person may
    restart it.
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
    gone_at: datetime | None
    rows: int | None
    quarantined: int | None
    held: tuple[str, ...]
    error: str
    dead_letters: int | None
    spark_ui: str
    may_act: bool
    bronze_p50_seconds: float | None = None
    bronze_p95_seconds: float | None = None
    day: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What the page shows. `judged_at` is when the health check last ran, `erasures` are namespaces in which a deadline
    nears, `approvals` runs that wait for the answer of a person.
    """

    needs: tuple[Need, ...]
    streams: tuple[Row, ...]
    others: tuple[Row, ...]
    judged_at: datetime | None
    warning: str
    only: str
    hidden: int
    erasures: tuple[NamespaceCounts, ...] = ()
    approvals: tuple[Question, ...] = ()

    @property
    def announced(self) -> str:
        """What is said aloud when it changes."""
        bad = sum(row.state == "unhealthy" for row in (*self.streams, *self.others))
        waiting = f", {len(self.approvals)} wait for an answer" if self.approvals else ""
        return f"{len(self.needs)} need you, {bad} unhealthy{waiting}"


def view(look: Look) -> Overview:
    """The page as it is now, for what the person may see. `?only=words` keeps the rows that have them."""
    reports, judged = reports_of(look)
    needs = needs_of(look, reports, judged)
    rows = [row_of(look, item, judged) for item in reports]
    only = look.query.get("only", "").strip()
    kept = [row for row in rows if only.lower() in f"{row.kind} {row.name} {row.state} {row.cause}".lower()]
    kept.sort(key=lambda row: (_ORDER.index(row.state), row.name))
    return Overview(
        needs=tuple(needs),
        streams=tuple(row for row in kept if row.kind == "stream"),
        others=tuple(row for row in kept if row.kind != "stream"),
        judged_at=health_judged_at(look),
        warning=channel_warning(look.catalog.environment.alerts),
        only=only,
        hidden=len(rows) - len(kept),
        erasures=near_deadlines(look),
        approvals=look.questions,
    )


def reports_of(look: Look) -> tuple[list[Report], Mapping[str, Verdict]]:
    """Every report that the person may see, as of now, and the verdicts of the health check, which know since when."""
    reports, previous = _declared_reports(look, only=lambda subject: True)
    if look.person.may_read(HEALTH_DAG):
        # A collector is run by no DAG, and a vault belongs to no pipeline: whoever may see the health check sees them.
        reports += process_reports(look.catalog, look.objects, previous=previous, now=look.now)
    return reports, previous


def report_of_stream(look: Look, pipeline: str) -> tuple[Report | None, Mapping[str, Verdict]]:
    """The report of one stream as of now, None where there is no such stream, and the verdicts of the health check."""
    reports, previous = _declared_reports(
        look, only=lambda subject: (subject.kind, subject.name) == ("stream", pipeline)
    )
    return next(iter(reports), None), previous


def _declared_reports(look: Look, *, only: Callable[[Subject], bool]) -> tuple[list[Report], Mapping[str, Verdict]]:
    """Reports of streams, relays and the like, rightly declared or not."""
    objects, catalog = look.objects, look.catalog
    sound = [item for item in health_report.subjects(catalog) if look.person.may_read(item.dag_id) and only(item)]
    objects.fetch([paths.health_verdicts(), *(key for subject in sound for key in _keys(subject))])
    try:
        previous = health_report.read_verdicts(objects)
    except DeltaworksError:
        previous = {}
    reports = [_report(look, subject, previous) for subject in sound]
    wrong = (
        health_report.invalid_spec_reports(catalog, objects, previous=previous, now=look.now) if catalog.broken else []
    )
    reports += [item for item in wrong if look.person.may_read(item.subject.dag_id) and only(item.subject)]
    return reports, previous


def _report(look: Look, subject: Subject, previous: Mapping[str, Verdict]) -> Report:
    """A report as of now; a heartbeat with values of another release is a verdict, and ends no page."""
    paused = look.paused
    try:
        return health_report.judge_subject(
            subject,
            look.objects,
            previous=previous,
            now=look.now,
            paused=lambda dag_id: None if paused is None else dag_id in paused,
        )
    except (ValueError, TypeError, AttributeError) as error:
        before = previous.get(subject.key)
        verdict = unreadable_verdict(error, kind=subject.kind, name=subject.name, now=look.now, previous=before)
        return Report(subject, verdict, None)


def _keys(subject: Subject) -> list[str]:
    control = subject.control
    keys = [paths.heartbeat(control), paths.stop_request(control)]
    if subject.kind == "stream":
        keys += [f"{control}/input_norm.json", paths.throughput(control)]
        keys += [summary_paths.recent_batches(subject.name), summary_paths.stream_hours(subject.name)]
    return keys


def row_of(look: Look, item: Report, judged: Mapping[str, Verdict]) -> Row:
    """A relay, stream or process as a row."""
    verdict, beat, subject = item.verdict, item.heartbeat, item.subject
    hour = item.throughput.last_hour(look.now)
    left = verdict.time_left_seconds
    is_stream = subject.kind == "stream"
    fresh = tolerant(lambda: recent_freshness(look.objects, subject.name, look.now)) if is_stream else None
    return Row(
        kind=subject.kind,
        name=subject.name,
        dag_id=subject.dag_id,
        state=verdict.state,
        cause=verdict.cause,
        detail=verdict.detail,
        next_step=verdict.next_step,
        since=since_of(item, judged),
        heartbeat_at=instant(beat.written_at if beat else None),
        waiting_since=instant(beat.oldest_pending_at if beat else None),
        gone_at=None if left is None else (look.now + timedelta(seconds=left)).replace(microsecond=0),
        rows=hour.rows if is_stream else None,
        quarantined=hour.quarantined if is_stream else None,
        held=tuple(str(held.get("table", "")) for held in beat.held) if beat else (),
        error=str((beat.error or {}).get("condition", "")) if beat else "",
        dead_letters=beat.dead_letters if beat else None,
        spark_ui=(beat.ui or "") if beat else "",
        may_act=look.person.may_start(subject.dag_id),
        bronze_p50_seconds=fresh[0] if fresh else None,
        bronze_p95_seconds=fresh[1] if fresh else None,
        day=_day(look, subject.name) if is_stream else (),
    )


def _day(look: Look, pipeline: str) -> tuple[float | None, ...]:
    """Rows of each of the last 24 hours; None where no batch landed within it."""
    stored = tolerant(lambda: look.objects.get(summary_paths.stream_hours(pipeline)))
    return _day_of(stored.data, look.now.replace(minute=0, second=0, microsecond=0)) if stored else ()


@lru_cache(maxsize=256)
def _day_of(data: bytes, last: datetime) -> tuple[float | None, ...]:
    """The 24 hours that end with that of `last`. Kept: an object of 60 days is the same for a minute."""
    hours = tolerant(lambda: orjson.loads(data)["hours"][-25:]) or ()
    by_hour = tolerant(lambda: {instant(hour["at"]): float(hour["rows"]) for hour in hours})
    return tuple(by_hour.get(last - timedelta(hours=back)) for back in range(23, -1, -1)) if by_hour else ()


PAGE = Page(name="overview", route="/", title="Overview", view=view, menu="Overview")
