"""How tables fared, as charts over time by the snapshots of their health: score, files, share of small ones, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from deltaworks.maintenance.table_health.chart_page import write_chart_page

Snapshot = Mapping[str, Any]
Line = Callable[[Snapshot], float | None]


def small_file_share(row: Snapshot) -> float | None:
    """The share of a table's files that OPTIMIZE would merge; None where there are none, or it is not known."""
    if not row["files"] or row["small_files"] is None:
        return None
    return float(row["small_files"]) / float(row["files"])


#: Each chart: its title, its axis, and what a snapshot puts into it.
CHARTS: tuple[tuple[str, str, Line], ...] = (
    ("Score", "of 100", lambda row: row["score"]),
    ("Files", "files", lambda row: row["files"]),
    ("Share of small files", "share", small_file_share),
    ("Size", "MiB", lambda row: None if row["bytes"] is None else row["bytes"] / (1 << 20)),
)


def worst_tables(snapshots: Iterable[Snapshot], most: int) -> dict[str, list[Snapshot]]:
    """The snapshots of the tables whose newest score is lowest, worst first, by `owner.table`. Pure.

    Args:
        snapshots: in order of time.
    """
    by_table: dict[str, list[Snapshot]] = {}
    for row in snapshots:
        by_table.setdefault(f"{row['owner']}.{row['table_name']}", []).append(row)
    judged = sorted(
        (score, name)
        for name, rows in by_table.items()
        if (score := next((row["score"] for row in reversed(rows) if row["score"] is not None), None)) is not None
    )
    return {name: by_table[name] for _, name in judged[:most]}


def write_trend_chart(path: Path, by_table: Mapping[str, list[Snapshot]]) -> Path:
    """Write a page with a line for each table in each of CHARTS, and return its path. A gap is a table not read."""
    figures = [_figure(title, axis, of, by_table) for title, axis, of in CHARTS]
    times = [row["taken_at"] for rows in by_table.values() for row in rows]
    said = f"{len(by_table)} tables"
    if times:
        said += f", {min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC; the worst score comes first"
    return write_chart_page(path, title="Health of tables over time", said=f"{said}.", figures=figures)


def _figure(title: str, axis: str, of: Line, by_table: Mapping[str, list[Snapshot]]) -> go.Figure:
    lines = [
        go.Scatter(name=name, x=[row["taken_at"] for row in rows], y=[of(row) for row in rows], mode="lines+markers")
        for name, rows in by_table.items()
    ]
    return go.Figure(lines).update_layout(title=title, yaxis_title=axis).update_yaxes(rangemode="tozero")
