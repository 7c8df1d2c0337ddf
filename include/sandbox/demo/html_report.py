"""The demo's static report: one HTML page with charts, readable without a server or internet access."""

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
        "edits.edits_per_hour",
        "Wikipedia: edits per hour",
        "bar",
        "hour",
        "edits",
        "SELECT hour, edits FROM edits.edits_per_hour ORDER BY 1",
    ),
)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2733}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid #dde3ea;padding:.35rem .6rem;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}.yes{color:#0a7a3d}.no{color:#b3261e;font-weight:bold}
"""


def write_report(connection: duckdb.DuckDBPyConnection, tables: list[str], report: DemoReport, folder: Path) -> Path:
    """Write the page below `folder` and return its path."""
    parts = [_answers(report), _facts(report)]
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
    if "edits.top_pages" in tables:
        rows = connection.execute(
            "SELECT page, edits FROM edits.top_pages ORDER BY edits DESC, page LIMIT 10"
        ).fetchall()
        parts.append(_table("Wikipedia: most edited pages", ["page", "edits"], rows))
    now = datetime.now(UTC)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Deltaworks demo</title><style>{_STYLE}</style>"
        f"<h1>Deltaworks demo, {now:%Y-%m-%d %H:%M} UTC</h1>{''.join(parts)}</html>"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"demo-{now:%Y%m%d-%H%M%S}.html"
    path.write_text(page, encoding="utf-8")
    return path


def _chart(rows: list[Any], title: str, kind: str, axes: tuple[str, str], *, include_library: bool | str) -> str:
    x, y = [row[0] for row in rows], [row[1] for row in rows]
    trace = go.Bar(x=x, y=y) if kind == "bar" else go.Scatter(x=x, y=y, mode="lines", fill="tozeroy")
    figure = go.Figure(trace)
    figure.update_layout(
        title=title,
        xaxis_title=axes[0],
        yaxis_title=axes[1],
        template="plotly_white",
        height=340,
        margin={"l": 60, "r": 20, "t": 50, "b": 45},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=include_library))


def _answers(report: DemoReport) -> str:
    rows = [
        (answer.pipeline, answer.question, _shown(answer.computed), _shown(answer.truth), answer.right)
        for answer in report.answers
    ]
    body = "".join(
        f"<tr><td>{html.escape(pipeline)}<td>{html.escape(question)}<td class=n>{html.escape(computed)}"
        f"<td class=n>{html.escape(truth)}<td class={'yes' if right else 'no'}>{'right' if right else 'WRONG'}"
        for pipeline, question, computed, truth, right in rows
    )
    return f"<h2>Answers and truth</h2><table><tr><th>pipeline<th>question<th>answer<th>truth<th></tr>{body}</table>"


def _facts(report: DemoReport) -> str:
    facts = [
        (
            f"{freshness.pipeline}: landing to gold",
            f"p50 {freshness.gold_p50_seconds:.0f} s, p95 {freshness.gold_p95_seconds:.0f} s",
        )
        for freshness in report.freshness
    ]
    if report.provenance is not None:
        named = report.provenance.commits - len(report.provenance.unnamed)
        facts.append(("Delta commits naming pipeline, batch and run", f"{named} of {report.provenance.commits}"))
    facts.append(("list requests to the landing bucket", str(report.landing_lists)))
    facts.append(("streams", report.health))
    facts.extend(("maintenance", line) for line in report.maintenance)
    return _table("How it went", ["", ""], facts)


def _table(title: str, names: list[str], rows: list[Any]) -> str:
    head = "".join(f"<th>{html.escape(name)}" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(_shown(value))}" for value in row) for row in rows)
    return f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
