"""Prints results as JSON lines for programs and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result, as_record


def print_lines(results: Sequence[Result], stream: TextIO) -> None:
    """Writes one JSON object per line."""
    for result in results:
        stream.write(json.dumps(as_record(result)) + "\n")
    stream.flush()


def print_table(results: Sequence[Result], console: Console) -> None:
    """Prints the results as a table; a ratio below 1 means that ours takes less time."""
    table = Table("benchmark", "metric", "ours", "other", "ours / other", "events", "tables")
    for result in results:
        table.add_row(
            result.benchmark,
            result.metric,
            f"{result.ours_name} {_format(result.ours, result.unit)}",
            f"{result.other_name} {_format(result.other, result.unit)}",
            f"{result.ratio:.2f}",
            f"{result.sizes.get('events', 0):,}",
            f"{result.sizes.get('tables', 0):,}",
        )
    console.print(table)
    if results:
        console.print(
            f"Medians of {len(results[0].ours_all)} repetitions on {results[0].cores} cores.", highlight=False
        )


def _format(value: float, unit: str) -> str:
    return f"{value:.2f} s" if unit == "seconds" else f"{value:,.0f} {unit}"
