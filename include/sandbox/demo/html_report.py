"""Renders the demo's results as one HTML page with charts that needs no server or internet access."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from deltaworks.charts.drawing import ChartOptions, escape
from deltaworks.charts.page import html_table, section, with_legend, write_page
from deltaworks.charts.plots import area_chart, column_chart, line_chart
from deltaworks.charts.scales import build_series

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

#: Charts: table, title, kind, titles of both axes, and a query of x, y and, for several lines, their names.
_CHARTS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "games.events_per_hour",
        "Games: events per hour",
        "area",
        "hour",
        "events",
        "SELECT hour, sum(events) FROM games.events_per_hour GROUP BY 1 ORDER BY 1",
    ),
    (
        "games.bookings_per_hour",
        "Games: bookings per hour",
        "bar",
        "hour",
        "bookings",
        "SELECT hour, bookings::DOUBLE FROM games.bookings_per_hour ORDER BY 1",
    ),
    (
        "games.daily_active_users",
        "Games: daily active users",
        "bar",
        "date",
        "devices",
        "SELECT event_date, users FROM games.daily_active_users ORDER BY 1",
    ),
    (
        "engagement.activities_per_day",
        "Engagement: activities per day, after all requests",
        "bar",
        "date",
        "activities",
        "SELECT engagement_date, sum(activities)::BIGINT FROM engagement.activities_per_day GROUP BY 1 ORDER BY 1",
    ),
    (
        "edits.edits_per_hour",
        "Wikipedia: edits per hour",
        "bar",
        "hour",
        "edits",
        "SELECT hour, edits FROM edits.edits_per_hour ORDER BY 1",
    ),
    (
        "video_qos.qos_minute",
        "Video: concurrent viewers",
        "area",
        "minute",
        "views",
        "SELECT minute, sum(active_views)::BIGINT FROM video_qos.qos_minute GROUP BY 1 ORDER BY 1",
    ),
    (
        "video_qos.error_minute",
        "Video: errors of players",
        "bar",
        "minute",
        "errors",
        "SELECT minute, sum(errors)::BIGINT FROM video_qos.error_minute GROUP BY 1 ORDER BY 1",
    ),
    (
        "cdn_logs.cdn_latency",
        "CDN: p95 of the time to the first byte of media",
        "line",
        "minute",
        "ms",
        "SELECT minute, first_byte_ms_p95, value FROM cdn_logs.cdn_latency WHERE dimension = 'cdn' ORDER BY 1, 3",
    ),
    (
        "stocks.pe_daily",
        "Stocks: price over earnings as it was known, mean of all",
        "area",
        "session",
        "P/E",
        "SELECT price_date, avg(pe_annual) FROM stocks.pe_daily GROUP BY 1 ORDER BY 1",
    ),
)
_STYLE = """
:root{--right:#0a7a3d}@media(prefers-color-scheme:dark){:root{--right:#5fd08f}}
.table{max-height:none}.yes{color:var(--right)}.no{color:var(--wrong);font-weight:bold}
"""
_UNKNOWN = "not known yet"


def write_report(connection: duckdb.DuckDBPyConnection, tables: list[str], report: DemoReport, folder: Path) -> Path:
    """Writes the page below `folder` and returns its path."""
    parts = [_answers(report), _facts(report), _phases(report)]
    for table, title, kind, x_title, y_title, query in _CHARTS:
        if table in tables:
            rows = connection.execute(query).fetchall()
            parts.append(_chart(rows, kind, ChartOptions(title=title, x_title=x_title, y_title=y_title, wide=True)))
    if "games.retention" in tables:
        rows = connection.execute("SELECT * FROM games.retention ORDER BY cohort_date").fetchall()
        names = [column[0] for column in connection.description or []]
        parts.append(_table("Games: retention by install date", names, rows))
    if "engagement.top_contacts" in tables:
        rows = connection.execute(
            "SELECT org_id, contact_name, contact_id, activities FROM engagement.top_contacts"
            " WHERE place <= 3 ORDER BY org_id, place"
        ).fetchall()
        names = ["organisation", "contact", "its id today", "activities"]
        parts.append(_table("Engagement: busiest contacts", names, rows))
    if "edits.top_pages" in tables:
        rows = connection.execute(
            "SELECT page, edits FROM edits.top_pages ORDER BY edits DESC, page LIMIT 10"
        ).fetchall()
        parts.append(_table("Wikipedia: most edited pages", ["page", "edits"], rows))
    now = datetime.now(UTC)
    path = folder / f"demo-{now:%Y%m%d-%H%M%S}.html"
    title = f"Deltaworks demo, {now:%Y-%m-%d %H:%M} UTC"
    return write_page(path, title=title, summary="", sections=parts, style=_STYLE)


def _chart(rows: list[Any], kind: str, options: ChartOptions) -> str:
    if not rows:
        return section(options.title, '<p class="empty">No rows.</p>')
    names = [row[2] for row in rows] if len(rows[0]) > 2 else None
    values = {options.y_title: [row[1] for row in rows]}
    data = build_series([row[0] for row in rows], values, by=names, additive=kind != "line")
    if kind == "line":
        chart = line_chart(options, data, data.span, from_zero=True)
    else:
        chart = (column_chart if kind == "bar" else area_chart)(options, data, data.span)
    return section(options.title, with_legend(chart, data))


def _answers(report: DemoReport) -> str:
    rows = [
        (answer.pipeline, answer.question, _format(answer.computed), _format(answer.truth), answer.is_right)
        for answer in report.answers
    ]
    body = "".join(
        f"<tr><td>{escape(pipeline)}<td>{escape(question)}<td class=n>{escape(computed)}"
        f"<td class=n>{escape(truth)}<td class={'yes' if right else 'no'}>{'right' if right else 'WRONG'}"
        for pipeline, question, computed, truth, right in rows
    )
    head = "<tr><th>pipeline<th>question<th class=n>answer<th class=n>truth<th>"
    return section("Answers and truth", f"<div class=table><table>{head}{body}</table></div>")


def _facts(report: DemoReport) -> str:
    return _table("How it went", ["", ""], report.describe())


def _phases(report: DemoReport) -> str:
    phases = [(phase.name, round(phase.seconds), round(phase.cpu_seconds)) for phase in report.phases]
    return _table("Seconds so far, by phase", ["phase", "seconds", "CPU seconds"], phases)


def _table(title: str, names: list[str], rows: Sequence[Sequence[Any]]) -> str:
    return section(title, html_table(names, rows, format_value=_format))


def _format(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
