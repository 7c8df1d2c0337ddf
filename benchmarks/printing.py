"""Prints results as JSON lines for programs and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result, as_record


def print_lines(figures: Sequence[Result], stream: TextIO) -> None:
    """Writes one JSON object per line."""
    for figure in figures:
        stream.write(json.dumps(as_record(figure)) + "\n")
    stream.flush()


def print_table(figures: Sequence[Result], console: Console) -> None:
    """Prints the results as a table; a ratio below 1 means that ours takes less time."""
    table = Table("benchmark", "metric", "ours", "other", "ours / other", "events", "tables")
    for figure in figures:
        table.add_row(
            figure.benchmark,
            figure.metric,
            f"{figure.ours_name} {_format(figure.ours, figure.unit)}",
            f"{figure.other_name} {_format(figure.other, figure.unit)}",
            f"{figure.ratio:.2f}",
            f"{figure.sizes.get('events', 0):,}",
            f"{figure.sizes.get('tables', 0):,}",
        )
    console.print(table)
    if figures:
        console.print(
            f"Medians of {len(figures[0].ours_all)} repetitions on {figures[0].cores} cores.", highlight=False
        )


def _format(value: float, unit: str) -> str:
    return f"{value:.2f} s" if unit == "seconds" else f"{value:,.0f} {unit}"
