"""Pages of open quarantined rows: of all pipelines, and of one by reason, event and spec, with the replay command."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from deltaworks.console.page_context import PageContext, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.tables import problems_of
from deltaworks.console.paging import Rows, page_rows, read_summaries, read_summary
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.summaries.quarantine import OpenRowCount, QuarantineSummary
from deltaworks.operations.registry import get_operation

_MAX_DAYS: Final = 60
REPROCESS: Final = get_operation("reprocess")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline with its number of open rows and their most frequent reason."""

    pipeline: str
    rows: int
    groups: int
    reason: str
    since: str
    counted_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOverview:
    """Content of the quarantine page of all pipelines, most rows first. The rows of `missing` pipelines have not been
    counted yet."""

    listed: Rows[PipelineRow]
    pipelines_without_rows: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonGroup:
    """Open rows with the same reason, event, field and spec, and the command that counts the rows a replay lands."""

    reason: str
    event: str
    field: str
    spec: str
    rows: int
    since: str
    until: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineView:
    """Content of a pipeline's quarantine page. The dates in `days` have no gaps: dates without rows are included.

    The person may see raw values, which may be personal, if `may_sample` is set.
    """

    pipeline: str
    listed: Rows[ReasonGroup]
    rows: int
    other_rows: int
    counted_at: datetime | None
    days: tuple[str, ...]
    rows_by_day: tuple[int, ...]
    reasons: tuple[tuple[str, int], ...]
    is_missing: bool
    problem: str
    may_sample: bool
    command: str

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.rows} open rows"


_PIPELINE_SORT_KEYS = {
    "pipeline": lambda row: row.pipeline,
    "rows": lambda row: row.rows,
    "groups": lambda row: row.groups,
    "since": lambda row: row.since,
}
_GROUP_SORT_KEYS = {
    "reason": lambda row: row.reason,
    "event": lambda row: row.event,
    "field": lambda row: row.field,
    "spec": lambda row: row.spec,
    "rows": lambda row: row.rows,
    "since": lambda row: row.since,
}


def view_all(context: PageContext) -> QuarantineOverview:
    """Returns all pipelines the person may see."""
    stored = read_summaries(
        context, QuarantineSummary, {name: quarantine_summary(name) for name in context.pipelines()}
    )
    summaries = {name: one.summary for name, one in stored.items() if one.summary is not None}
    rows = [_pipeline_row(name, summary) for name, summary in summaries.items() if total_rows(summary)]
    return QuarantineOverview(
        listed=page_rows(
            context,
            rows,
            keys=_PIPELINE_SORT_KEYS,
            sort="rows",
            descending=True,
            text=lambda row: f"{row.pipeline} {row.reason}",
        ),
        pipelines_without_rows=tuple(name for name, summary in summaries.items() if not total_rows(summary)),
        missing=tuple(name for name, one in stored.items() if one.is_missing),
        problems=problems_of(stored),
    )


def view(context: PageContext) -> QuarantineView:
    """Returns the page of the pipeline in the address."""
    pipeline = context.pipeline
    stored = read_summary(context, QuarantineSummary, quarantine_summary(pipeline))
    summary = stored.summary or QuarantineSummary(pipeline=pipeline, at="")
    days = _rows_by_day(summary.open_rows)
    return QuarantineView(
        pipeline=pipeline,
        listed=page_rows(
            context,
            _reason_groups(pipeline, summary.open_rows),
            keys=_GROUP_SORT_KEYS,
            sort="rows",
            descending=True,
            text=lambda row: f"{row.reason} {row.event} {row.field} {row.spec}",
        ),
        rows=total_rows(summary),
        other_rows=summary.other_rows,
        counted_at=parse_instant(summary.at),
        days=tuple(days),
        rows_by_day=tuple(days.values()),
        reasons=tuple(_rows_by_reason(summary.open_rows).most_common()),
        is_missing=stored.is_missing,
        problem=stored.problem,
        may_sample=context.person.may_start(REPROCESS.dag_id(pipeline)),
        command=f"deltaworks quarantine replay {pipeline}",
    )


def total_rows(summary: QuarantineSummary) -> int:
    """Returns the number of open rows; a row counts once for each of its reasons and fields."""
    return sum(row.rows for row in summary.open_rows) + summary.other_rows


def _pipeline_row(pipeline: str, summary: QuarantineSummary) -> PipelineRow:
    by_reason = _rows_by_reason(summary.open_rows)
    return PipelineRow(
        pipeline=pipeline,
        rows=total_rows(summary),
        groups=len({(row.reason, row.event, row.field, row.spec) for row in summary.open_rows}),
        reason=by_reason.most_common(1)[0][0] if by_reason else "",
        since=min((row.date for row in summary.open_rows), default=""),
        counted_at=parse_instant(summary.at),
    )


def _rows_by_reason(rows: Iterable[OpenRowCount]) -> Counter[str]:
    by_reason = Counter[str]()
    for row in rows:
        by_reason[row.reason] += row.rows
    return by_reason


def _reason_groups(pipeline: str, rows: Iterable[OpenRowCount]) -> list[ReasonGroup]:
    by_kind: dict[tuple[str, str, str, str], list[OpenRowCount]] = defaultdict(list)
    for row in rows:
        by_kind[row.reason, row.event, row.field, row.spec].append(row)
    return [
        ReasonGroup(
            reason=reason,
            event=event,
            field=field,
            spec=spec,
            rows=sum(row.rows for row in group_rows),
            since=min(row.date for row in group_rows),
            until=max(row.date for row in group_rows),
            command=_replay_command(pipeline, reason, event),
        )
        for (reason, event, field, spec), group_rows in by_kind.items()
    ]


def _replay_command(pipeline: str, reason: str, event: str) -> str:
    words = ["deltaworks", "quarantine", "replay", pipeline, "--reason", reason, *(("--event", event) if event else ())]
    return shlex.join(words)


def _rows_by_day(rows: Iterable[OpenRowCount]) -> dict[str, int]:
    """Returns the rows of each of the last days, including days without rows."""
    counted = Counter[date]()
    for row in rows:
        day = parse_instant(row.date)
        if day is not None:
            counted[day.date()] += row.rows
    if not counted:
        return {}
    last = max(counted)
    first = max(min(counted), last - timedelta(days=_MAX_DAYS - 1))
    span = (last - first).days + 1
    days = [first + timedelta(days=number) for number in range(span)]
    return {day.isoformat(): counted[day] for day in days}


PAGES = (
    Page(name="quarantines", route="/quarantine", title="Quarantine", view=view_all, menu="Quarantine"),
    Page(name="quarantine", route="/quarantine/{pipeline}", title="Quarantine of {pipeline}", view=view),
)
