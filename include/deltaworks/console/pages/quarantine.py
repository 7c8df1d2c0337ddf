"""Open rows of quarantine: of every pipeline, and of one by reason, event and spec, with what lands them."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from deltaworks.console.look import Look
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.tables import problems_of
from deltaworks.console.paging import Rows, rows_of
from deltaworks.console.readings import instant
from deltaworks.console.stored import read_summaries, read_summary
from deltaworks.control.summaries.quarantine import OpenRowCount, QuarantineSummary
from deltaworks.control.summary_paths import quarantine_summary

_MOST_DAYS: Final = 60
REPROCESS: Final = "reprocess__{pipeline}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline's open rows. `reason` has most of them."""

    pipeline: str
    rows: int
    kinds: int
    reason: str
    since: str
    counted_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantines:
    """The page of all pipelines: those with most rows first. `clean` have none, `missing` were never counted."""

    listed: Rows[PipelineRow]
    clean: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Rows of one reason, event and spec, and the command that counts what a replay of them would land."""

    reason: str
    event: str
    spec: str
    rows: int
    since: str
    until: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineView:
    """The page of one pipeline. `days` are its dates with the rows of each; gaps between them are days without any.

    `may_sample` says whether the person may see raw values, which may be personal.
    """

    pipeline: str
    listed: Rows[Kind]
    rows: int
    other_rows: int
    counted_at: datetime | None
    days: tuple[str, ...]
    rows_by_day: tuple[int, ...]
    never: bool
    problem: str
    may_sample: bool
    command: str

    @property
    def announced(self) -> str:
        """What is said aloud when it changes."""
        return f"{self.rows} open rows"


_PIPELINE_KEYS = {
    "pipeline": lambda row: row.pipeline,
    "rows": lambda row: row.rows,
    "kinds": lambda row: row.kinds,
    "since": lambda row: row.since,
}
_KIND_KEYS = {
    "reason": lambda row: row.reason,
    "event": lambda row: row.event,
    "spec": lambda row: row.spec,
    "rows": lambda row: row.rows,
    "since": lambda row: row.since,
}


def view_all(look: Look) -> Quarantines:
    """Every pipeline that the person may see."""
    stored = read_summaries(look, QuarantineSummary, {name: quarantine_summary(name) for name in look.pipelines()})
    summaries = {name: one.summary for name, one in stored.items() if one.summary is not None}
    rows = [_pipeline_row(name, summary) for name, summary in summaries.items() if total(summary)]
    return Quarantines(
        listed=rows_of(
            look,
            rows,
            keys=_PIPELINE_KEYS,
            sort="rows",
            descending=True,
            text=lambda row: f"{row.pipeline} {row.reason}",
        ),
        clean=tuple(name for name, summary in summaries.items() if not total(summary)),
        missing=tuple(name for name, one in stored.items() if one.never),
        problems=problems_of(stored),
    )


def view(look: Look) -> QuarantineView:
    """The pipeline that the address names."""
    pipeline = look.pipeline
    stored = read_summary(look, QuarantineSummary, quarantine_summary(pipeline))
    summary = stored.summary or QuarantineSummary(pipeline=pipeline, at="")
    days = _days(summary.open_rows)
    return QuarantineView(
        pipeline=pipeline,
        listed=rows_of(
            look,
            _kinds(pipeline, summary.open_rows),
            keys=_KIND_KEYS,
            sort="rows",
            descending=True,
            text=lambda row: f"{row.reason} {row.event} {row.spec}",
        ),
        rows=total(summary),
        other_rows=summary.other_rows,
        counted_at=instant(summary.at),
        days=tuple(days),
        rows_by_day=tuple(days.values()),
        never=stored.never,
        problem=stored.problem,
        may_sample=look.person.may_start(REPROCESS.format(pipeline=pipeline)),
        command=f"deltaworks quarantine replay {pipeline}",
    )


def total(summary: QuarantineSummary) -> int:
    """Open rows, each once a reason."""
    return sum(row.rows for row in summary.open_rows) + summary.other_rows


def _pipeline_row(pipeline: str, summary: QuarantineSummary) -> PipelineRow:
    by_reason = Counter[str]()
    for row in summary.open_rows:
        by_reason[row.reason] += row.rows
    return PipelineRow(
        pipeline=pipeline,
        rows=total(summary),
        kinds=len({(row.reason, row.event, row.spec) for row in summary.open_rows}),
        reason=by_reason.most_common(1)[0][0] if by_reason else "",
        since=min((row.date for row in summary.open_rows), default=""),
        counted_at=instant(summary.at),
    )


def _kinds(pipeline: str, rows: Iterable[OpenRowCount]) -> list[Kind]:
    by_kind: dict[tuple[str, str, str], list[OpenRowCount]] = defaultdict(list)
    for row in rows:
        by_kind[row.reason, row.event, row.spec].append(row)
    return [
        Kind(
            reason=reason,
            event=event,
            spec=spec,
            rows=sum(row.rows for row in of_kind),
            since=min(row.date for row in of_kind),
            until=max(row.date for row in of_kind),
            command=_replay(pipeline, reason, event),
        )
        for (reason, event, spec), of_kind in by_kind.items()
    ]


def _replay(pipeline: str, reason: str, event: str) -> str:
    words = ["deltaworks", "quarantine", "replay", pipeline, "--reason", reason, *(("--event", event) if event else ())]
    return shlex.join(words)


def _days(rows: Iterable[OpenRowCount]) -> dict[str, int]:
    """Rows of each of the last days, those without any among them."""
    counted = Counter[date]()
    for row in rows:
        day = instant(row.date)
        if day is not None:
            counted[day.date()] += row.rows
    if not counted:
        return {}
    last = max(counted)
    first = max(min(counted), last - timedelta(days=_MOST_DAYS - 1))
    span = (last - first).days + 1
    days = [first + timedelta(days=number) for number in range(span)]
    return {day.isoformat(): counted[day] for day in days}


PAGES = (
    Page(name="quarantines", route="/quarantine", title="Quarantine", view=view_all, menu="Quarantine"),
    Page(name="quarantine", route="/quarantine/{pipeline}", title="Quarantine of {pipeline}", view=view),
)
