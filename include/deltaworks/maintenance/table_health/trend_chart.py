"""Renders table health over time as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

Snapshot = Mapping[str, Any]
LineValue = Callable[[Snapshot], float | None]
_STYLE = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"


def small_file_share(row: Snapshot) -> float | None:
    """Returns the share of files that OPTIMIZE would merge; None if unknown."""
    if not row["files"] or row["small_files"] is None:
        return None
    return float(row["small_files"]) / float(row["files"])


#: Charts: title, axis, and value of a snapshot.
CHARTS: tuple[tuple[str, str, LineValue], ...] = (
    ("Score", "of 100", lambda row: row["score"]),
    ("Files", "files", lambda row: row["files"]),
    ("Share of small files", "share", small_file_share),
    ("Size", "MiB", lambda row: None if row["bytes"] is None else row["bytes"] / (1 << 20)),
)


def worst_tables(snapshots: Iterable[Snapshot], max_tables: int) -> dict[str, list[Snapshot]]:
    """Returns the snapshots of the tables with the lowest current scores, worst first, by `owner.table`. Pure.

    Args:
        snapshots: ordered by time.
    """
    by_table: dict[str, list[Snapshot]] = {}
    for row in snapshots:
        by_table.setdefault(f"{row['owner']}.{row['table_name']}", []).append(row)
    scored = sorted(
        (score, name)
        for name, rows in by_table.items()
        if (score := next((row["score"] for row in reversed(rows) if row["score"] is not None), None)) is not None
    )
    return {name: by_table[name] for _, name in scored[:max_tables]}


def write_trend_chart(path: Path, by_table: Mapping[str, list[Snapshot]]) -> Path:
    """Writes a page with a line per table in each chart, and returns its path. Lines have gaps where a table was
    unreadable.
    """
    figures = [_trend_figure(title, axis, value_of, by_table) for title, axis, value_of in CHARTS]
    times = [row["taken_at"] for rows in by_table.values() for row in rows]
    summary = f"{len(by_table)} tables"
    if times:
        summary += f", {min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC; the worst score comes first"
    return write_chart_page(path, title="Health of tables over time", summary=f"{summary}.", figures=figures)


def _trend_figure(title: str, axis: str, value_of: LineValue, by_table: Mapping[str, list[Snapshot]]) -> go.Figure:
    lines = [
        go.Scatter(
            name=name, x=[row["taken_at"] for row in rows], y=[value_of(row) for row in rows], mode="lines+markers"
        )
        for name, rows in by_table.items()
    ]
    return go.Figure(lines).update_layout(title=title, yaxis_title=axis).update_yaxes(rangemode="tozero")


def write_chart_page(path: Path, *, title: str, summary: str, figures: Sequence[go.Figure]) -> Path:
    """Writes the page, creating folders, and returns its path.

    Args:
        summary: plain text above the charts.
    """
    parts = []
    for number, figure in enumerate(figures):
        figure.update_layout(template="plotly_white", height=420, margin={"l": 70, "r": 20, "t": 60, "b": 60})
        parts.append(str(figure.to_html(full_html=False, include_plotlyjs=number == 0)))
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{html.escape(title)}</h1><p>{html.escape(summary)}</p>{''.join(parts)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html><html lang=en>{head}{body}</html>", encoding="utf-8")
    return path
