"""Ranges of the sequence number `_seq` per partition, from file statistics in the Delta log.

Rows are numbered by `_seq` in the order of arrival, and an add action has the minimum and maximum of its file's rows. A
file without these statistics may contain any number.
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
    """Updates `min_seq_by_partition` with the minimum `_seq` of the rows that one commit added.

    A partition's value becomes None if a file was removed or has no statistics. Actions that only rearrange rows
    (`dataChange: false`) are ignored.
    """
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
    """Returns the maximum `_seq` per date of an open table.

    A date has None if one of its files has no statistics. Dates without files are omitted. Returns None if the table is
    not partitioned by `date_column`.
    """
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
