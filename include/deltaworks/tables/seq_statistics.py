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


def record_min_seq(min_seq_by_partition: dict[Partition, int | None], actions: Iterable[Action]) -> None:
    """Add to `first`, by partition, the least number of the rows that a commit has added; None where that is not known,
    or rows were removed. What only rearranges rows is passed over."""
    for action in actions:
        added, file_action = action.get("add"), action.get("add") or action.get("remove")
        if file_action is None or not file_action.get("dataChange", True):
            continue
        partition = tuple(sorted((file_action.get("partitionValues") or {}).items()))
        min_seq = None if added is None else (stats_of(added).get("minValues") or {}).get(SEQ)
        previous = min_seq_by_partition.get(partition, min_seq)
        min_seq_by_partition[partition] = (
            min(previous, min_seq) if isinstance(previous, int) and isinstance(min_seq, int) else None
        )


def max_seq_by_date(table: DeltaTable, date_column: str) -> Mapping[dt.date, int | None] | None:
    """The greatest number of the rows of each date of an open table, None where a file does not say; None in all where
    the table is not partitioned by its dates. A date without files is not in it."""
    added = pa.table(table.get_add_actions(flatten=True))
    date_values, max_column = f"partition.{date_column}", f"max.{SEQ}"
    if date_values not in added.column_names:
        return None
    numbers: list[Any] = (
        added.column(max_column).to_pylist() if max_column in added.column_names else [None] * len(added)
    )
    max_seq: dict[dt.date, int | None] = {}
    for date, number in zip(added.column(date_values).to_pylist(), numbers, strict=True):
        previous = max_seq.get(date, number)
        max_seq[date] = None if previous is None or number is None else max(previous, number)
    return max_seq
