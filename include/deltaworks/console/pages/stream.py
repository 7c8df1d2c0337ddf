"""The page of a stream: its verdict and owner, lag and rows over time, last batches, held tables, and its
declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.charts.compact import TimeSeries
from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant, read_or_none
from deltaworks.console.pages import overview
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.open_issues import OpenIssue, open_issues
from deltaworks.control import paths
from deltaworks.control.health.report import Report
from deltaworks.control.provenance import airflow_run_of
from deltaworks.control.records.generations import GenerationStore
from deltaworks.control.records.specs import CurrentSpec, SpecRecords
from deltaworks.control.records.store import RecordStore
from deltaworks.control.summaries.stream import (
    BatchSummary,
    HourSummary,
    RecentBatches,
    StreamHours,
    read_hours,
    read_recent,
)

#: The time spans of the charts, by query parameter.
SPANS = {"6h": timedelta(hours=6), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_BATCHES_SHOWN = 20
_MAX_VALUE_CHARACTERS = 200
_GAP = timedelta(minutes=15)
#: A chart begins with its data, but is not shorter than this share of its span.
_MIN_SHARE = 1 / 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One of the last batches with the duration of each phase."""

    batch_id: int
    at: datetime | None
    rows: int
    quarantined: int
    bytes: int
    seconds: float
    prepare_seconds: float
    commit_seconds: float
    complete_seconds: float
    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTable:
    """A table whose commits are held, and the first held batch."""

    table: str
    reason: str
    since_batch: int
    at: datetime | None
    condition: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """A difference between the running and the current declaration."""

    field: str
    text: str
    effect: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that owns the stream's lease, and its position in the input."""

    epoch: int | None = None
    host: str = ""
    started_at: datetime | None = None
    dag_id: str = ""
    run_id: str = ""
    generation: int | None = None
    checkpoint: int | None = None
    batch_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """Content of the stream page. The specs are given as fingerprints, empty if unknown."""

    row: overview.ProcessRow
    issues: tuple[OpenIssue, ...]
    owner: Owner
    span: str
    since: datetime
    until: datetime
    charts: tuple[TimeSeries, ...]
    bronze_p50_seconds: float | None
    bronze_p95_seconds: float | None
    batches: tuple[Batch, ...]
    held: tuple[HeldTable, ...]
    problems: tuple[tuple[datetime | None, str], ...]
    running_spec: str
    declared_spec: str
    changes: tuple[SpecChange, ...]
    dashboards: tuple[tuple[str, str], ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.row.name} is {self.row.state}"


def view(context: PageContext) -> StreamView:
    """Returns the page of the pipeline in the address, with charts over `?span=6h`, `24h` or `7d`.

    Raises:
        PageMissingError: there is no such stream.
    """
    name = context.pipeline
    context.objects.fetch(
        [
            paths.recent_batches(name),
            paths.stream_hours(name),
            paths.generations(name),
            paths.current_spec(name),
        ]
    )
    report, verdicts = overview.stream_report(context, name)
    if report is None:
        raise PageMissingError(f"The stream of {name!r} has not been checked yet.")
    recent = read_or_none(lambda: read_recent(context.objects, name))
    hours = read_or_none(lambda: read_hours(context.objects, name))
    span = context.query.get("span", "6h")
    span = span if span in SPANS else "6h"
    # Rounded to the minute, so that the axis changes once a minute.
    until = context.now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    heartbeat, row = report.heartbeat, overview.process_row(context, report, verdicts)
    running, changes = _spec(context, name)
    declared = context.catalog.pipelines.get(name)
    charts = _charts(recent, hours, span)
    return StreamView(
        row=row,
        issues=tuple(open_issues(context, [report], verdicts, pipeline=name)),
        owner=_owner(context, name, report),
        span=span,
        since=_first_shown(charts, until, SPANS[span]),
        until=until,
        charts=charts,
        bronze_p50_seconds=row.bronze_p50_seconds,
        bronze_p95_seconds=row.bronze_p95_seconds,
        batches=tuple(map(_batch, reversed(recent.batches[-_BATCHES_SHOWN:]))) if recent else (),
        held=tuple(_held(item) for item in heartbeat.held) if heartbeat else (),
        problems=tuple((parse_instant(item.at), item.text) for item in reversed(recent.problems)) if recent else (),
        running_spec=running,
        declared_spec=declared.fingerprint() if declared else "",
        changes=changes,
        dashboards=tuple((item.name, item.title or item.name) for item in (declared.dashboards if declared else ())),
    )


def _first_shown(charts: tuple[TimeSeries, ...], until: datetime, span: timedelta) -> datetime:
    """Returns the start of the charts: of the span, or of the data if they begin later."""
    since = until - span
    first = min((at for series in charts for at, _ in series.points if at >= since), default=since)
    return max(since, min(first, until - span * _MIN_SHARE).replace(second=0, microsecond=0))


def _owner(context: PageContext, name: str, report: Report) -> Owner:
    heartbeat = report.heartbeat
    generations = read_or_none(lambda: GenerationStore(context.objects, name).read())
    dag_id, run_id = airflow_run_of(heartbeat.run) if heartbeat else ("", "")
    return Owner(
        epoch=heartbeat.epoch if heartbeat else None,
        host=heartbeat.host if heartbeat else "",
        started_at=parse_instant(heartbeat.started_at) if heartbeat else None,
        dag_id=dag_id,
        run_id=run_id,
        generation=generations.generation if generations else None,
        checkpoint=generations.current.ordinal if generations else None,
        batch_id=heartbeat.batch_id if heartbeat else None,
    )


def _spec(context: PageContext, name: str) -> tuple[str, tuple[SpecChange, ...]]:
    """Returns the fingerprint of the running declaration, and its differences from the current one."""
    current = read_or_none(lambda: RecordStore(context.objects, CurrentSpec).read(paths.current_spec(name)))
    declared = context.catalog.pipelines.get(name)
    if current is None or declared is None or current.fingerprint == declared.fingerprint():
        return (current.fingerprint if current else ""), ()
    changes = read_or_none(lambda: SpecRecords(context.objects, name).changes(declared)) or []
    return current.fingerprint, tuple(
        SpecChange(
            field=item.field,
            text=f"{_shorten(item.old)} → {_shorten(item.new)}",
            effect=str(item.effect),
            advice=item.advice,
        )
        for item in changes
    )


def _shorten(value: object) -> str:
    """Formats a declared value in one line; a missing value is "nothing"."""
    return "nothing" if value is None else str(value)[:_MAX_VALUE_CHARACTERS]


def _batch(item: BatchSummary) -> Batch:
    return Batch(
        batch_id=item.batch_id,
        at=parse_instant(item.at),
        rows=item.rows,
        quarantined=item.quarantined,
        bytes=item.bytes,
        seconds=item.seconds,
        prepare_seconds=item.prepare_seconds,
        commit_seconds=item.commit_seconds,
        complete_seconds=item.complete_seconds,
        resumed=item.resumed,
    )


def _held(item: dict[str, object]) -> HeldTable:
    since = item.get("since_batch", 0)
    return HeldTable(
        table=str(item.get("table", "")),
        reason=str(item.get("reason", "")),
        since_batch=since if isinstance(since, int) else 0,
        at=parse_instant(item.get("at")),
        condition=str(item.get("condition") or ""),
        message=str(item.get("message") or ""),
    )


def _charts(recent: RecentBatches | None, hours: StreamHours | None, span: str) -> tuple[TimeSeries, ...]:
    """Returns lag, backlog and rows: per batch for hours, per hour for days."""
    if span == "6h" or hours is None:
        batches = recent.batches if recent else ()
        return (
            _series(
                "age of the oldest waiting input", batches, lambda batch: batch.oldest_pending_seconds, unit="seconds"
            ),
            _series("backlog", batches, _backlog, unit="count"),
            _series("rows a batch", batches, lambda batch: float(batch.rows), unit="count"),
        )
    return (
        _series("longest wait of the hour", hours.hours, lambda hour: hour.longest_pending_seconds, unit="seconds"),
        _series("rows an hour", hours.hours, lambda hour: float(hour.rows), unit="count"),
        _series("quarantined an hour", hours.hours, lambda hour: float(hour.quarantined), unit="count"),
    )


def _backlog(batch: BatchSummary) -> float | None:
    number = batch.backlog_files if batch.backlog_files is not None else batch.backlog_records
    return None if number is None else float(number)


def _series(
    name: str,
    items: tuple[BatchSummary, ...] | tuple[HourSummary, ...],
    value: Callable[..., float | None],
    *,
    unit: str,
) -> TimeSeries:
    """Returns a series with a gap wherever no value arrived for long, so that a stop is not drawn as a slope."""
    gap = _GAP if items and isinstance(items[0], BatchSummary) else timedelta(hours=1)
    points: list[tuple[datetime, float | None]] = []
    for item in items:
        at = parse_instant(item.at)
        if at is None:
            continue
        if points and at - points[-1][0] > gap:
            points.append((points[-1][0] + gap / 2, None))
        points.append((at, value(item)))
    return TimeSeries(name=name, points=points, unit=unit)


PAGE = Page(name="stream", route="/streams/{pipeline}", title="Stream {pipeline}", view=view)
