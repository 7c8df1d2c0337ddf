"""Pages of nightly maintenance: the last run of every pipeline, and all runs of one with the results of each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.tables import problems_of
from deltaworks.console.paging import Rows, page_rows, read_summaries, read_summary, to_dict
from deltaworks.control.paths import nights_summary
from deltaworks.control.provenance import maintenance_dag_id
from deltaworks.control.summaries.jobs import MAX_NIGHTS, Night, NightsSummary, NightTask


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRow:
    """A maintenance run. Its state is `complete` or `failed`.

    OPTIMIZE rewrote `rewritten_bytes`; deleting tasks removed `freed_bytes`.
    """

    pipeline: str
    run: str
    date: str
    state: str
    failed: tuple[str, ...]
    is_manual: bool
    started_at: datetime | None
    seconds: float | None
    rewritten_files: int
    rewritten_bytes: int
    freed_files: int
    freed_bytes: int
    put_off: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNights:
    """Content of the maintenance page of all pipelines; failed runs come first."""

    listed: Rows[NightRow]
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{sum(row.state == 'failed' for row in self.listed.rows)} last nights failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """Content of a pipeline's maintenance page: its runs, newest first, and the tasks of the run in `?run=`."""

    pipeline: str
    listed: Rows[NightRow]
    selected: NightRow | None
    tasks: tuple[Mapping[str, Any], ...]
    is_missing: bool
    problem: str
    dag_id: str


_SORT_KEYS = {
    "pipeline": lambda row: row.pipeline,
    "state": lambda row: (row.state != "failed", row.errors == 0, row.pipeline),
    "began": lambda row: row.started_at,
    "seconds": lambda row: row.seconds,
    "rewritten": lambda row: row.rewritten_bytes,
    "freed": lambda row: row.freed_bytes,
}
#: Tasks that rewrite files, and tasks that delete unused files.
OPTIMIZE_TASKS = ("optimize_tables",)
_DELETE_TASKS = ("vacuum_tables", "remove_orphans", "compact_control_tables", "expire_quarantine", "purge_deleted")


def view_all(context: PageContext) -> LastNights:
    """Returns the last run of every pipeline the person may see."""
    stored = read_summaries(context, NightsSummary, {name: nights_summary(name) for name in context.pipelines()})
    last = {name: one.summary.nights[0] for name, one in stored.items() if one.summary and one.summary.nights}
    rows = [night_row(name, night) for name, night in last.items()]
    return LastNights(
        listed=page_rows(context, rows, keys=_SORT_KEYS, sort="state", text=_filter_text),
        missing=tuple(name for name, one in stored.items() if one.is_missing),
        problems=problems_of(stored),
    )


def view(context: PageContext) -> Nights:
    """Returns the runs of the pipeline in the address."""
    pipeline = context.pipeline
    stored = read_summary(context, NightsSummary, nights_summary(pipeline))
    nights = {night.run: night for night in (stored.summary.nights if stored.summary else ())}
    run = context.query.get("run", "")
    if run and run not in nights:
        raise PageMissingError(f"Run {run!r} of {pipeline} is not on record; the last {MAX_NIGHTS} are.")
    selected = nights[run] if run else next(iter(nights.values()), None)
    rows = [night_row(pipeline, night) for night in nights.values()]
    return Nights(
        pipeline=pipeline,
        listed=page_rows(context, rows, keys=_SORT_KEYS, sort="began", descending=True, text=_filter_text),
        selected=None if selected is None else night_row(pipeline, selected),
        tasks=() if selected is None else tuple(_task(task) for task in selected.tasks),
        is_missing=stored.is_missing,
        problem=stored.problem,
        dag_id=maintenance_dag_id(pipeline),
    )


def _task(task: NightTask) -> Mapping[str, Any]:
    """Returns a task as plain data. Results without work are marked, which the page folds."""
    results = [{**to_dict(result), "is_idle": result.is_idle and not result.deferred} for result in task.results]
    return {**to_dict(task), "results": results}


def _filter_text(row: NightRow) -> str:
    return f"{row.pipeline} {row.date} {row.state} {' '.join(row.failed)}"


def night_row(pipeline: str, night: Night) -> NightRow:
    """Returns a maintenance run as a row."""
    began_at, ended_at = parse_instant(night.started_at), parse_instant(night.ended_at)
    results = [result for task in night.tasks for result in task.results]
    rewritten = [task for task in night.tasks if task.task in OPTIMIZE_TASKS]
    freed = [
        result
        for task in night.tasks
        if task.task in _DELETE_TASKS
        for result in task.results
        if not result.dry_run and not result.error
    ]
    return NightRow(
        pipeline=pipeline,
        run=night.run,
        date=night.date,
        state="failed" if night.failed else "complete",
        failed=night.failed,
        is_manual=night.is_manual,
        started_at=began_at,
        seconds=(ended_at - began_at).total_seconds() if began_at and ended_at else None,
        rewritten_files=sum(task.files for task in rewritten),
        rewritten_bytes=sum(task.bytes for task in rewritten),
        freed_files=sum(result.files for result in freed),
        freed_bytes=sum(result.bytes for result in freed),
        put_off=sum(result.deferred for result in results),
        errors=sum(bool(result.error) for result in results),
    )


PAGES = (
    Page(name="last_nights", route="/nights", title="Nights", view=view_all, menu="Nights"),
    Page(name="nights", route="/nights/{pipeline}", title="Nights of {pipeline}", view=view),
)
