"""When the rows of files arrived, by their statistics: read from the log alone.

Rows of events are numbered as they arrive, by `_seq`. A file says in its add action between which numbers its rows lie;
one that says it not may have rows of any.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.tables.changes import Partition
from deltaworks.tables.log import Action, stats_of

SEQ = "_seq"


def note_arrivals(first: dict[Partition, int | None], actions: Iterable[Action]) -> None:
    """Add to `first`, by partition, the least number of the rows that a commit has added; None where that is not known,
    or rows were removed. What only rearranges rows is passed over."""
    for action in actions:
        added, moved = action.get("add"), action.get("add") or action.get("remove")
        if moved is None or not moved.get("dataChange", True):
            continue
        place = tuple(sorted((moved.get("partitionValues") or {}).items()))
        own = None if added is None else (stats_of(added).get("minValues") or {}).get(SEQ)
        before = first.get(place, own)
        first[place] = min(before, own) if isinstance(before, int) and isinstance(own, int) else None


def last_arrivals(table: DeltaTable, date_column: str) -> Mapping[dt.date, int | None] | None:
    """The greatest number of the rows of each date of an open table, None where a file does not say; None in all where
    the table is not partitioned by its dates. A date without files is not in it."""
    added = pa.table(table.get_add_actions(flatten=True))
    dates, greatest = f"partition.{date_column}", f"max.{SEQ}"
    if dates not in added.column_names:
        return None
    numbers: list[Any] = added.column(greatest).to_pylist() if greatest in added.column_names else [None] * len(added)
    last: dict[dt.date, int | None] = {}
    for date, number in zip(added.column(dates).to_pylist(), numbers, strict=True):
        before = last.get(date, number)
        last[date] = None if before is None or number is None else max(before, number)
    return last
