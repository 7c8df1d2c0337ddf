"""The page of costs: bytes stored and rewritten and core hours of each pipeline in the last days, and their price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from deltaworks.console.page_context import PageContext, parse_instant, read_or_none
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.nights import OPTIMIZE_TASKS
from deltaworks.console.paging import Rows, page_rows, read_summaries
from deltaworks.control.paths import nights_summary, stream_hours, tables_summary
from deltaworks.control.summaries.jobs import Night, NightsSummary
from deltaworks.control.summaries.stream import HourSummary, read_hours
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.specs.environment import PricesSpec

DAYS: Final = 30
_TB, _HOUR = 10**12, 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The usage of a pipeline in the last DAYS days. The stored bytes are the current ones.

    The core hours of a stream are those of its batches. The cores that the stream occupies while it waits are not
    included. The total is None if no prices are declared.
    """

    pipeline: str
    batches: int
    read_bytes: int
    stored_bytes: int
    rewritten_bytes: int
    stream_core_hours: float
    night_core_hours: float
    total: float | None
    seconds_by_day: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Content of the costs page.

    Pipelines without recorded usage are `missing`; `days` are the dates of `seconds_by_day`.
    """

    listed: Rows[CostRow]
    currency: str
    total: float | None
    days: tuple[str, ...]
    busiest_seconds: float
    missing: tuple[str, ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.listed.matching} pipelines"


_SORT_KEYS = {
    "pipeline": lambda row: row.pipeline,
    "read": lambda row: row.read_bytes,
    "stored": lambda row: row.stored_bytes,
    "rewritten": lambda row: row.rewritten_bytes,
    "compute": lambda row: row.stream_core_hours + row.night_core_hours,
    "total": lambda row: row.total,
}


def view(context: PageContext) -> Costs:
    """Returns the costs of the pipelines the person may see."""
    pipelines = [name for name in context.pipelines() if name in context.catalog.pipelines]
    tables = read_summaries(context, TablesSummary, {name: tables_summary(name) for name in pipelines})
    nights = read_summaries(context, NightsSummary, {name: nights_summary(name) for name in pipelines})
    context.objects.fetch([stream_hours(name) for name in pipelines])
    today = context.now.astimezone(UTC).date()
    days = tuple((today - timedelta(days=DAYS - 1 - number)).isoformat() for number in range(DAYS))
    rows, missing = [], []
    for name in pipelines:
        summary, upkeep, hours = tables[name].summary, nights[name].summary, _hours(context, name)
        if summary is None and upkeep is None and not hours:
            missing.append(name)
            continue
        summaries = summary.tables if summary else ()
        night_summaries = upkeep.nights if upkeep else ()
        rows.append(_row(context, name, tables=summaries, nights=night_summaries, hours=hours, days=days))
    prices = context.catalog.environment.prices
    return Costs(
        listed=page_rows(
            context,
            rows,
            keys=_SORT_KEYS,
            sort="total" if prices else "compute",
            descending=True,
            text=lambda row: row.pipeline,
        ),
        currency=prices.currency if prices else "",
        total=sum(row.total or 0.0 for row in rows) if prices else None,
        days=days,
        busiest_seconds=max((seconds for row in rows for seconds in row.seconds_by_day), default=0.0),
        missing=tuple(missing),
    )


def _hours(context: PageContext, pipeline: str) -> tuple[HourSummary, ...]:
    stored = read_or_none(lambda: read_hours(context.objects, pipeline))
    return stored.hours if stored else ()


def _row(
    context: PageContext,
    pipeline: str,
    *,
    tables: Iterable[TableSummary],
    nights: Iterable[Night],
    hours: Iterable[HourSummary],
    days: tuple[str, ...],
) -> CostRow:
    shares = context.catalog.environment.shares
    recent_hours = [hour for hour in hours if _is_within(parse_instant(hour.at), context.now)]
    night_tasks = [
        task for night in nights if _is_within(parse_instant(night.started_at), context.now) for task in night.tasks
    ]
    stored = sum((table.bytes or 0) + (table.unreferenced_bytes or 0) for table in tables)
    rewritten = sum(task.bytes for task in night_tasks if task.task in OPTIMIZE_TASKS)
    by_day = dict.fromkeys(days, 0.0)
    for hour in recent_hours:
        if hour.at[:10] in by_day:
            by_day[hour.at[:10]] += hour.busy_seconds
    stream = sum(hour.busy_seconds for hour in recent_hours) / _HOUR * max(1, shares.of("stream").cores)
    night = sum(task.seconds for task in night_tasks) / _HOUR * max(1, shares.of("maintenance").cores)
    prices = context.catalog.environment.prices
    return CostRow(
        pipeline=pipeline,
        batches=sum(hour.batches for hour in recent_hours),
        read_bytes=sum(hour.bytes for hour in recent_hours),
        stored_bytes=stored,
        rewritten_bytes=rewritten,
        stream_core_hours=round(stream, 2),
        night_core_hours=round(night, 2),
        total=None
        if prices is None
        else estimate_cost(prices, stored=stored, rewritten=rewritten, core_hours=stream + night),
        seconds_by_day=tuple(by_day.values()),
    )


def estimate_cost(prices: PricesSpec, *, stored: int, rewritten: int, core_hours: float) -> float:
    """Returns the price of the usage in DAYS days: stored bytes, rewritten bytes and core hours. Pure."""
    by_storage = prices.stored_per_tb_month * stored / _TB + prices.rewritten_per_tb * rewritten / _TB
    return round(by_storage + prices.core_hour * core_hours, 2)


def _is_within(at: datetime | None, now: datetime) -> bool:
    return at is not None and now - at <= timedelta(days=DAYS)


PAGE = Page(name="costs", route="/costs", title="Costs", view=view, menu="Costs")
