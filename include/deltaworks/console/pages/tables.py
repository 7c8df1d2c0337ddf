"""All tables of the pipelines that somebody may see, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.console.look import Look
from deltaworks.console.pages.base import Page
from deltaworks.console.paging import Rows, rows_of
from deltaworks.console.readings import instant
from deltaworks.console.stored import Stored, newest, read_summaries
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.control.summary_paths import tables_summary

_KEYS = {
    "table": lambda row: (row.pipeline, row.name),
    "kind": lambda row: row.kind,
    # What cannot be read is worse than any score.
    "score": lambda row: -1 if row.error else row.score,
    "files": lambda row: row.files,
    "small": lambda row: row.small_share,
    "order": lambda row: row.unordered_share,
    "size": lambda row: row.bytes,
    "written": lambda row: row.last_write_at,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One table. `dearest` is the trouble that costs its score most, `scores` are those of its last nights."""

    pipeline: str
    name: str
    kind: str
    error: str
    score: int | None
    scores: tuple[int | None, ...]
    dearest: str
    dearest_cost: float
    files: int | None
    small_share: float | None
    unordered_share: float | None
    bytes: int | None
    last_write_at: datetime | None
    tonight: str
    seconds: float
    holds: int

    @property
    def text(self) -> str:
        """What a filter looks in."""
        return f"{self.pipeline}.{self.name} {self.kind} {self.dearest} {'error' if self.error else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The page. `at` is the newest snapshot, `missing` are pipelines of which none has been taken."""

    listed: Rows[TableRow]
    at: datetime | None
    missing: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def announced(self) -> str:
        """What is said aloud when it changes."""
        return f"{self.listed.matching} tables"


def view(look: Look) -> Tables:
    """The page for what the person may see; `?pipeline=` leaves one pipeline's."""
    chosen = look.query.get("pipeline", "")
    pipelines = [name for name in look.pipelines() if chosen in ("", name)]
    stored = read_summaries(look, TablesSummary, {name: tables_summary(name) for name in pipelines})
    every = [
        table_row(pipeline, table)
        for pipeline, one in stored.items()
        for table in (one.summary.tables if one.summary else ())
    ]
    return Tables(
        listed=rows_of(look, every, keys=_KEYS, sort="score", text=lambda row: row.text),
        at=newest(instant(one.summary.at) for one in stored.values() if one.summary),
        missing=tuple(name for name, one in stored.items() if one.never),
        problems=problems_of(stored),
    )


def problems_of(stored: dict[str, Stored[Any]]) -> tuple[str, ...]:
    """What cannot be read, a line a pipeline."""
    return tuple(f"{name}: {one.problem}" for name, one in stored.items() if one.problem)


def table_row(pipeline: str, table: TableSummary) -> TableRow:
    """A table as a row."""
    dearest = max(table.costs, key=lambda cost: cost.cost, default=None)
    if dearest is not None and not dearest.cost:
        dearest = None
    plan = table.next_plan
    return TableRow(
        pipeline=pipeline,
        name=table.name,
        kind=table.kind,
        error=table.error,
        score=table.score,
        scores=tuple(point.score for point in table.nights),
        dearest=dearest.name if dearest else "",
        dearest_cost=dearest.cost if dearest else 0.0,
        files=table.files,
        small_share=table.small_share,
        unordered_share=table.unordered_share,
        bytes=table.bytes,
        last_write_at=instant(table.last_write_at),
        tonight=plan.reason if plan else "",
        seconds=plan.seconds if plan else 0.0,
        holds=len(table.holds),
    )


PAGE = Page(name="tables", route="/tables", title="Tables", view=view, menu="Tables")
