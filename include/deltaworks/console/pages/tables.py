"""The page of all tables of the pipelines a person may see, lowest score first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.console.page_context import PageContext, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.paging import Rows, StoredSummary, latest_instant, page_rows, read_summaries
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary

_SORT_KEYS = {
    "table": lambda row: (row.pipeline, row.name),
    "kind": lambda row: row.kind,
    # A table that cannot be read is sorted before all scores.
    "score": lambda row: -1 if row.error else row.score,
    "files": lambda row: row.files,
    "small": lambda row: row.small_share,
    "order": lambda row: row.unordered_share,
    "size": lambda row: row.bytes,
    "written": lambda row: row.last_write_at,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table. The main issue is the one that reduces its score most; `scores` are those of the last snapshots."""

    pipeline: str
    name: str
    kind: str
    error: str
    score: int | None
    scores: tuple[int | None, ...]
    main_issue: str
    main_issue_cost: float
    files: int | None
    small_share: float | None
    unordered_share: float | None
    bytes: int | None
    last_write_at: datetime | None
    tonight: str
    seconds: float
    holds: int

    @property
    def filter_text(self) -> str:
        """The text that the page's filter searches."""
        return f"{self.pipeline}.{self.name} {self.kind} {self.main_issue} {'error' if self.error else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesView:
    """Content of the tables page. The newest snapshot was taken at `at`; `missing` pipelines have no snapshot."""

    listed: Rows[TableRow]
    at: datetime | None
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.listed.matching} tables"


def view(context: PageContext) -> TablesView:
    """Returns the tables the person may see; `?pipeline=` filters by pipeline."""
    only_pipeline = context.query.get("pipeline", "")
    pipelines = [name for name in context.pipelines() if only_pipeline in ("", name)]
    stored = read_summaries(context, TablesSummary, {name: tables_summary(name) for name in pipelines})
    all_tables = [
        table_row(pipeline, table)
        for pipeline, one in stored.items()
        for table in (one.summary.tables if one.summary else ())
    ]
    return TablesView(
        listed=page_rows(context, all_tables, keys=_SORT_KEYS, sort="score", text=lambda row: row.filter_text),
        at=latest_instant(parse_instant(one.summary.at) for one in stored.values() if one.summary),
        missing=tuple(name for name, one in stored.items() if one.is_missing),
        problems=problems_of(stored),
    )


def problems_of(stored: dict[str, StoredSummary[Any]]) -> tuple[str, ...]:
    """Returns read errors, one line per pipeline."""
    return tuple(f"{name}: {one.problem}" for name, one in stored.items() if one.problem)


def table_row(pipeline: str, table: TableSummary) -> TableRow:
    """Returns a table as a row."""
    main_issue = max(table.costs, key=lambda cost: cost.cost, default=None)
    if main_issue is not None and not main_issue.cost:
        main_issue = None
    plan = table.next_plan
    return TableRow(
        pipeline=pipeline,
        name=table.name,
        kind=table.kind,
        error=table.error,
        score=table.score,
        scores=tuple(point.score for point in table.nights),
        main_issue=main_issue.name if main_issue else "",
        main_issue_cost=main_issue.cost if main_issue else 0.0,
        files=table.files,
        small_share=table.small_share,
        unordered_share=table.unordered_share,
        bytes=table.bytes,
        last_write_at=parse_instant(table.last_write_at),
        tonight=plan.reason if plan else "",
        seconds=plan.seconds if plan else 0.0,
        holds=len(table.holds),
    )


PAGE = Page(name="tables", route="/tables", title="Tables", view=view, menu="Tables")
