"""Finds the hours in which commits changed rows, from file statistics in the Delta log.

Each add action has the time range of its file's rows, and all hours in the range count as changed. For a removed file,
or one without a time range or with null times, all hours of its partition count. So the result may contain too many
hours, but never too few.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.tables.changes import Changes, Partition, changed_partitions
from deltaworks.tables.lake import Lake
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


HOUR = dt.timedelta(hours=1)
#: Files that span more hours than this count for their complete partition.
MAX_HOURS = 48
#: Starts of hours in UTC; None if any hour may have changed.
Hours = frozenset[dt.datetime] | None


def changed_hours(lake: Lake, key: str, *, time_column: str, after_version: int | None, up_to_version: int) -> Changes:
    """Returns `changed_partitions` with the hours that contain each partition's changed rows, their minimum `_seq`, and
    the number of added rows.

    Args:
        time_column: column with the time of a row; empty if hours are not needed.
    """
    hours: dict[Partition, Hours] = {}
    min_seq: dict[Partition, int | None] = {}
    added_rows: dict[Partition, int] = {}

    def record_commit(actions: Sequence[Action]) -> None:
        if time_column:
            record_hours(hours, actions, time_column)
        record_min_seq(min_seq, actions)
        record_added_rows(added_rows, actions)

    changes = changed_partitions(
        lake, key, after_version=after_version, up_to_version=up_to_version, on_commit=record_commit
    )
    return replace(
        changes,
        hours={partition: changed for partition, changed in hours.items() if changed is not None},
        first_seq={partition: seq for partition, seq in min_seq.items() if seq is not None},
        added_rows=added_rows,
    )


def record_added_rows(added_rows: dict[Partition, int], actions: Iterable[Action]) -> None:
    """Adds the number of rows that one commit added to each partition, according to file statistics."""
    for action in actions:
        added = action.get("add")
        if added is not None and added.get("dataChange", True):
            partition = tuple(sorted((added.get("partitionValues") or {}).items()))
            rows = stats_of(added).get("numRecords")
            added_rows[partition] = added_rows.get(partition, 0) + (rows if isinstance(rows, int) else 0)


def record_hours(hours: dict[Partition, Hours], actions: Iterable[Action], column: str) -> None:
    """Adds the hours changed by a commit to `hours`, by partition.

    Args:
        column: column with the time of a row. Actions that only rearrange rows are ignored.
    """
    for action in actions:
        added, file_action = action.get("add"), action.get("add") or action.get("remove")
        if file_action is None or not file_action.get("dataChange", True):
            continue
        partition = tuple(sorted((file_action.get("partitionValues") or {}).items()))
        previous = hours.get(partition, frozenset())
        added_hours = hours_of(added, column) if added is not None else None
        hours[partition] = None if previous is None or added_hours is None else previous | added_hours


def hours_of(added: Action, column: str) -> Hours:
    """Returns the hours that may contain rows of an added file; None if its statistics do not limit them."""
    stats = stats_of(added)
    bounds = [_to_utc((stats.get(name) or {}).get(column)) for name in ("minValues", "maxValues")]
    nulls = (stats.get("nullCount") or {}).get(column)
    if nulls != 0 or bounds[0] is None or bounds[1] is None:
        return None
    first, last = hour_of(bounds[0]), hour_of(bounds[1])
    if last < first or (last - first) // HOUR >= MAX_HOURS:
        return None
    return frozenset(first + HOUR * number for number in range((last - first) // HOUR + 1))


def hour_of(instant: dt.datetime) -> dt.datetime:
    """Returns the start of the hour that contains an instant."""
    return instant.replace(minute=0, second=0, microsecond=0)


def _to_utc(value: Any) -> dt.datetime | None:
    """Parses a timestamp of the statistics; without a zone it is UTC."""
    try:
        instant = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)
