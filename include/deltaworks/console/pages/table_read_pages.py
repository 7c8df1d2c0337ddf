"""Pages that read tables on request: the last commits of a table, and the newest quarantined rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.quarantine import REPROCESS
from deltaworks.console.table_reads import TableReadResult, read_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a table. It was made by the Deltaworks operation or the engine named in `by`."""

    version: int
    at: datetime | None
    operation: str
    by: str
    batch: str
    run: str
    metrics: Mapping[str, str]
    changes_rows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """The last commits of a table, newest first."""

    pipeline: str
    table: str
    commits: tuple[Commit, ...]
    unfinished: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A quarantined row with the beginning of its raw value; the complete value has `raw_bytes` bytes."""

    event: str
    at: datetime | None
    object: str
    batch: str
    reasons: tuple[tuple[str, str, str], ...]
    raw: str
    raw_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesView:
    """The newest open quarantined rows of a pipeline, of all reasons or of one."""

    pipeline: str
    reason: str
    samples: tuple[Sample, ...]
    unfinished: bool
    problem: str


def view_history(context: PageContext) -> HistoryView:
    """Returns the history of the table in the address."""
    pipeline, table = context.pipeline, context.values["table"]
    answer = read_tables("history", pipeline=pipeline, table=table)
    return HistoryView(
        pipeline=pipeline,
        table=table,
        commits=tuple(_commit(row) for row in answer.rows),
        unfinished=answer.unfinished,
        problem=answer.problem,
    )


def _commit(row: Mapping[str, Any]) -> Commit:
    metrics = row.get("metrics")
    return Commit(
        version=int(row.get("version") or 0),
        at=parse_instant(row.get("at")),
        operation=_text_field(row, "operation"),
        by=_text_field(row, "by"),
        batch=_text_field(row, "batch"),
        run=_text_field(row, "run"),
        metrics=metrics if isinstance(metrics, dict) else {},
        changes_rows=row.get("changes_rows") is True,
    )


def view_samples(context: PageContext) -> SamplesView:
    """Returns samples of the pipeline in the address. Only for people who may run its reprocess: raw values may be
    personal.
    """
    pipeline = context.pipeline
    if not context.person.may_start(REPROCESS.dag_id(pipeline)):
        raise PageMissingError(f"Raw values are shown to people who may run {REPROCESS.dag_id(pipeline)}.")
    reason = context.query.get("reason", "")
    answer: TableReadResult = read_tables("samples", pipeline=pipeline, reason=reason)
    return SamplesView(
        pipeline=pipeline,
        reason=reason,
        samples=tuple(_sample(row) for row in answer.rows),
        unfinished=answer.unfinished,
        problem=answer.problem,
    )


def _sample(row: Mapping[str, Any]) -> Sample:
    reasons = [reason for reason in row.get("reasons") or () if isinstance(reason, dict)]
    return Sample(
        event=_text_field(row, "event"),
        at=parse_instant(row.get("at")),
        object=_text_field(row, "object"),
        batch=_text_field(row, "batch"),
        reasons=tuple(
            (_text_field(one, "code"), _text_field(one, "path"), _text_field(one, "detail")) for one in reasons
        ),
        raw=_text_field(row, "raw"),
        raw_bytes=row.get("raw_bytes"),
    )


def _text_field(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


PAGES = (
    Page(
        name="history",
        route="/tables/{pipeline}/{table}/history",
        title="History of {pipeline}.{table}",
        view=view_history,
    ),
    # Personal data: browsers must not cache it.
    Page(
        name="samples",
        route="/quarantine/{pipeline}/samples",
        title="Samples of {pipeline}",
        view=view_samples,
        may_cache=False,
    ),
)
