"""Which hours the rows lie in that commits have added, by the statistics of their files, read from the log alone.

A file says in its add action between which instants its rows lie. One that says it not, or that has rows without an
instant, and one that was removed, may have had rows anywhere in its partition. A file with a single late row spans all
hours from that row's on: more than what changed, never less.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from deltaworks.tables.changes import Changes, Partition, changed_partitions
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, stats_of
from deltaworks.tables.seq_statistics import record_min_seq

HOUR = dt.timedelta(hours=1)
#: A file that spans more than these is of no single date; its hours are not listed one by one.
MAX_HOURS = 48
#: Hours by their first instants, in UTC; None for any.
Hours = frozenset[dt.datetime] | None


def changed_hours(lake: Lake, key: str, *, time_column: str, after_version: int | None, up_to_version: int) -> Changes:
    """What `changed_partitions` says, and of partitions in which hours all rows that changed lie, and how early they
    arrived.

    Args:
        time_column: the column with the instants of rows; without one no hours are looked for.
    """
    hours: dict[Partition, Hours] = {}
    min_seq: dict[Partition, int | None] = {}

    def record_commit(actions: Sequence[Action]) -> None:
        if time_column:
            record_hours(hours, actions, time_column)
        record_min_seq(min_seq, actions)

    changes = changed_partitions(
        lake, key, after_version=after_version, up_to_version=up_to_version, on_commit=record_commit
    )
    return replace(
        changes,
        hours={place: own for place, own in hours.items() if own is not None},
        first_seq={place: seq for place, seq in min_seq.items() if seq is not None},
    )


def record_hours(hours: dict[Partition, Hours], actions: Iterable[Action], column: str) -> None:
    """Add to `hours`, by partition, those in which a commit has changed rows.

    Args:
        column: the column with the instants of rows. What only rearranges rows is passed over.
    """
    for action in actions:
        added, moved = action.get("add"), action.get("add") or action.get("remove")
        if moved is None or not moved.get("dataChange", True):
            continue
        place = tuple(sorted((moved.get("partitionValues") or {}).items()))
        before = hours.get(place, frozenset())
        own = hours_of(added, column) if added is not None else None
        hours[place] = None if before is None or own is None else before | own


def hours_of(added: Action, column: str) -> Hours:
    """The hours in which the rows of an added file lie; None where its statistics do not say."""
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
    """The first instant of the hour in which this one lies."""
    return instant.replace(minute=0, second=0, microsecond=0)


def _to_utc(value: Any) -> dt.datetime | None:
    """An instant as statistics have it: with a zone, or else in UTC."""
    try:
        instant = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)
