"""Renders table health over time as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deltaworks.charts.drawing import ChartOptions
from deltaworks.charts.page import section, with_legend, write_page
from deltaworks.charts.plots import line_chart
from deltaworks.charts.scales import MAX_SERIES, named_series

Snapshot = Mapping[str, Any]
LineValue = Callable[[Snapshot], float | None]


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
    times = [row["taken_at"] for rows in by_table.values() for row in rows]
    summary = f"{len(by_table)} tables"
    if times:
        summary += f", {min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC; the worst score comes first"
    sections = (
        _trend_section(title, axis, value_of, by_table, first)
        for title, axis, value_of in CHARTS
        for first in range(0, len(by_table), MAX_SERIES)
    )
    return write_page(path, title="Health of tables over time", summary=f"{summary}.", sections=sections)


def _trend_section(
    title: str, axis: str, value_of: LineValue, by_table: Mapping[str, list[Snapshot]], first: int
) -> str:
    """Renders the lines of the tables from number `first`, as many as colours can distinguish."""
    names = list(by_table)[first : first + MAX_SERIES]
    if len(by_table) > MAX_SERIES:
        title += f", tables {first + 1} to {first + len(names)}"
    data = named_series({name: [(row["taken_at"], value_of(row)) for row in by_table[name]] for name in names})
    options = ChartOptions(title=title, x_title="time, UTC", y_title=axis, wide=True)
    # Snapshots may be taken at any distance, so that only an unreadable table is a gap.
    chart = line_chart(options, data, data.span, from_zero=True, points=True, split_at_gaps=False)
    return section(title, with_legend(chart, data))
