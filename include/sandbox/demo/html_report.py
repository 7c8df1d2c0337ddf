"""Renders the demo's results as one HTML page with charts that needs no server or internet access."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import plotly.graph_objects as go

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

_CHARTS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "games.events_per_hour",
        "Games: events per hour",
        "scatter",
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
        "scatter",
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
        "scatter",
        "minute",
        "ms",
        "SELECT minute, first_byte_ms_p95 FROM cdn_logs.cdn_latency WHERE dimension = 'cdn' ORDER BY 1",
    ),
    (
        "stocks.pe_daily",
        "Stocks: price over earnings as it was known, mean of all",
        "scatter",
        "session",
        "P/E",
        "SELECT price_date, avg(pe_annual) FROM stocks.pe_daily GROUP BY 1 ORDER BY 1",
    ),
)
_STYLE = """
:root{color-scheme:light dark;--text:#1c2733;--page:#fff;--line:#dde3ea;--right:#0a7a3d;--wrong:#b3261e}
@media(prefers-color-scheme:dark){:root{--text:#dfe6ee;--page:#14191f;--line:#323c47;--right:#5fd08f;--wrong:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
body{color:var(--text);background:var(--page)}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}.table{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{border-bottom:1px solid var(--line);padding:.35rem .6rem;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.yes{color:var(--right)}.no{color:var(--wrong);font-weight:bold}
"""
# Chart colours that are readable in light and dark mode, because charts do not follow the page's theme.
_INK, _GRID, _TRACE = "#7d8894", "rgba(125,136,148,0.25)", "#3b82c4"
_UNKNOWN = "not known yet"


def write_report(connection: duckdb.DuckDBPyConnection, tables: list[str], report: DemoReport, folder: Path) -> Path:
    """Writes the page below `folder` and returns its path."""
    parts = [_answers(report), _facts(report), _phases(report)]
    library: bool | str = True
    for table, title, kind, x_title, y_title, query in _CHARTS:
        if table in tables:
            rows = connection.execute(query).fetchall()
            parts.append(_chart(rows, title, kind, (x_title, y_title), include_library=library))
            library = False
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
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Deltaworks demo</title><style>{_STYLE}</style>"
        f"<h1>Deltaworks demo, {now:%Y-%m-%d %H:%M} UTC</h1>{''.join(parts)}</html>"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"demo-{now:%Y%m%d-%H%M%S}.html"
    path.write_text(page, encoding="utf-8")
    return path


def _chart(rows: list[Any], title: str, kind: str, axes: tuple[str, str], *, include_library: bool | str) -> str:
    x, y = [row[0] for row in rows], [row[1] for row in rows]
    line = {"color": _TRACE}
    trace = (
        go.Bar(x=x, y=y, marker=line)
        if kind == "bar"
        else go.Scatter(x=x, y=y, mode="lines", fill="tozeroy", line=line)
    )
    figure = go.Figure(trace)
    figure.update_layout(
        xaxis_title=axes[0],
        yaxis_title=axes[1],
        font={"color": _INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=320,
        margin={"l": 60, "r": 20, "t": 10, "b": 45},
    )
    figure.update_xaxes(gridcolor=_GRID, linecolor=_GRID, zerolinecolor=_GRID)
    figure.update_yaxes(gridcolor=_GRID, linecolor=_GRID, zerolinecolor=_GRID)
    drawn = figure.to_html(full_html=False, include_plotlyjs=include_library, config={"displayModeBar": False})
    return f"<h2>{html.escape(title)}</h2>{drawn}"


def _answers(report: DemoReport) -> str:
    rows = [
        (answer.pipeline, answer.question, _format(answer.computed), _format(answer.truth), answer.is_right)
        for answer in report.answers
    ]
    body = "".join(
        f"<tr><td>{html.escape(pipeline)}<td>{html.escape(question)}<td class=n>{html.escape(computed)}"
        f"<td class=n>{html.escape(truth)}<td class={'yes' if right else 'no'}>{'right' if right else 'WRONG'}"
        for pipeline, question, computed, truth, right in rows
    )
    head = "<tr><th>pipeline<th>question<th class=n>answer<th class=n>truth<th>"
    return f"<h2>Answers and truth</h2><div class=table><table>{head}{body}</table></div>"


def _facts(report: DemoReport) -> str:
    return _table("How it went", ["", ""], report.describe())


def _phases(report: DemoReport) -> str:
    phases = [(phase.name, round(phase.seconds), round(phase.cpu_seconds)) for phase in report.phases]
    return _table("Seconds so far, by phase", ["phase", "seconds", "CPU seconds"], phases)


def _table(title: str, names: list[str], rows: list[Any]) -> str:
    numbers = [all(isinstance(row[place], int | None) for row in rows) for place in range(len(names))]
    kinds = [" class=n" if number else "" for number in numbers]
    head = "".join(f"<th{kind}>{html.escape(name)}" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html.escape(_format(value))}" for value, kind in zip(row, kinds, strict=True))
        for row in rows
    )
    return f"<h2>{html.escape(title)}</h2><div class=table><table><tr>{head}{body}</table></div>"


def _format(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
