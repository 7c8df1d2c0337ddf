"""A slow reference parser in plain Python, to compare the engine with."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import ColumnSpec

LOW, HIGH = -2_208_988_800, 253_402_300_799


def at(event: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(event, dict) or name not in event:
            return None
        event = event[name]
    return event


def fits(value: Any, kind: str) -> bool:
    """Only the types the generated events use."""
    if kind == "string":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if kind == "int":
        return isinstance(value, int) and -(2**31) <= value < 2**31
    if kind == "decimal(12,2)":
        return isinstance(value, int) and abs(value) < 10**10
    raise AssertionError(kind)


def time_of(event: Any, path: str) -> dt.datetime | None:
    seconds = at(event, path)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not LOW <= seconds <= HIGH:
        return None
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def expected(spec: PipelineSpec, lines: list[str]) -> tuple[Counter[tuple[str, int]], set[int]]:
    """Which line lands in which tables, and which lines are in quarantine."""
    landed: Counter[tuple[str, int]] = Counter()
    quarantined = set()
    for position, line in enumerate(lines):
        tables = _tables(spec, line)
        if tables:
            landed.update((table, position) for table in tables)
        else:
            quarantined.add(position)
    return landed, quarantined


def _tables(spec: PipelineSpec, line: str) -> list[str]:
    try:
        event = json.loads(line)
    except ValueError:
        return []
    has_id = not spec.event.id or (isinstance(at(event, "id"), str) and at(event, "id"))
    name = at(event, "name")
    if not (isinstance(name, str) and name and has_id and time_of(event, "time") is not None):
        return []
    chosen = [table for table in spec.tables if table.when and all(at(event, p) in w for p, w in table.when.items())]
    if not chosen:
        return []
    chosen += [table for table in spec.tables if table.catch_all]
    good = all(_column_fits(event, column) for table in chosen for column in table.columns)
    return [table.name for table in chosen] if good else []


def _column_fits(event: Any, column: ColumnSpec) -> bool:
    value = at(event, column.path)
    return not column.required if value is None else fits(value, column.type)
