"""Which rows of events are copies: another row of the same key, near it, arrived before.

Rows are near whose dates, or hours, are at most so many apart; the lesser `_seq` arrived before, then the lesser
`_position`. Spark decides it by a window over all rows, which sorts them by their keys. In the driver the keys are
numbered by Arrow, and only rows whose key is there more than once are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.specs.gold import DedupeSpec

#: What a row came with: unique among the rows of a table, and in the order of their arrival.
ARRIVAL = ("_seq", "_position")
_HOUR_SECONDS = 3_600
_EPOCH = date(1970, 1, 1)
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copies:
    """The rows to leave out of a part of an input, by ARRIVAL, and how many there are of each of its dates, hours or
    other values."""

    rows: DataFrame
    per_value: Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows with a key each: its number, the day or hour of the row, counted from 1970, and when it arrived."""

    keys: Numbers
    near: Numbers
    seqs: Numbers
    positions: Numbers

    def of(self, rows: Numbers) -> Arrivals:
        """Those of some rows, by their places."""
        return Arrivals(self.keys[rows], self.near[rows], self.seqs[rows], self.positions[rows])


def reach(dedupe: DedupeSpec, part: Part) -> int:
    """How many dates copies in a part may lie apart, or hours in one that is told apart by hours."""
    return (dedupe.across_hours or 0) if part.by_hours else dedupe.across_days


def around(dedupe: DedupeSpec, part: Part) -> Part:
    """The rows among which it is decided which of a part are copies."""
    if part.by_hours:
        return part.widened_by_hours(reach(dedupe, part))
    return part.widened(reach(dedupe, part)) if part.column == DATE_COLUMN else part


def copies_among(rows: Arrivals, across: int) -> Numbers:
    """The places of the rows that are copies, in ascending order.

    Args:
        across: how far apart copies may lie.
    """
    counts = np.bincount(rows.keys)
    places = np.flatnonzero(counts[rows.keys] > 1)
    if not len(places):
        return places
    several = rows.of(places)
    arrived = _ranks(several.seqs, several.positions)
    # The first of each key in each date: sorted behind one another, with numbers that differ by the dates between.
    first = int(several.near.min())
    days = int(several.near.max()) - first
    across = min(across, days)
    numbers = several.keys * (days + 2 * across + 1) + (several.near - first + across)
    order = np.lexsort((arrived, numbers))
    groups, starts, group_of = np.unique(numbers[order], return_index=True, return_inverse=True)
    earliest = arrived[order][starts]
    least = earliest.copy()
    for offset in range(-across, across + 1):
        at = np.minimum(np.searchsorted(groups, groups + offset), len(groups) - 1)
        there = groups[at] == groups + offset
        least[there] = np.minimum(least[there], earliest[at[there]])
    copied = np.empty(len(places), np.bool_)
    copied[order] = arrived[order] > least[group_of]
    return places[copied]


def _ranks(seqs: Numbers, positions: Numbers) -> Numbers:
    """The order of arrival, the same for rows that say the same of it."""
    order = np.lexsort((positions, seqs))
    later = (np.diff(seqs[order]) != 0) | (np.diff(positions[order]) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(later)))
    return ranks


def copies_of_rows(rows: pa.Table, near: Numbers, part: Part, *, across: int) -> tuple[pa.Table, dict[Any, int]]:
    """The copies among rows that are in a part, by ARRIVAL, and how many there are of each date or hour.

    Args:
        rows: their keys, without null, in the first column, and ARRIVAL.
        near: of each row, the day or hour it is of.
        across: how far apart copies may lie.
    """
    keys = rows.column(0).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    seqs, positions = (rows.column(name).to_numpy().astype(np.int64) for name in ARRIVAL)
    places = copies_among(Arrivals(keys, near, seqs, positions), across)
    numbers, counts = np.unique(near[places], return_counts=True)
    values = [hour_numbered(number) if part.by_hours else _EPOCH + timedelta(number) for number in numbers.tolist()]
    inside = np.array([part.has(value) for value in values], np.bool_)
    places = places[np.isin(near[places], numbers[inside])]
    per_value = {value: count for value, count, has in zip(values, counts.tolist(), inside, strict=True) if has}
    return rows.select(ARRIVAL).take(places), per_value


def hour_numbered(number: int) -> datetime:
    """The first instant of an hour, by how many there were since 1970."""
    return datetime.fromtimestamp(number * _HOUR_SECONDS, UTC)


def copies_by_spark(rows: DataFrame, part: Part, dedupe: DedupeSpec) -> DataFrame:
    """The copies of all dates, hours or values of `rows`, by ARRIVAL, with that value of each.

    Args:
        rows: of `around` the part.
    """
    by_date = part.column == DATE_COLUMN
    near = F.floor(F.unix_seconds(F.col(TIME_COLUMN)) / _HOUR_SECONDS) if part.by_hours else F.unix_date(DATE_COLUMN)
    arrival, across = F.struct(*ARRIVAL), reach(dedupe, part)
    neighbours = (
        Window.partitionBy(dedupe.by, *([] if by_date else [part.column])).orderBy(near).rangeBetween(-across, across)
    )
    return (
        rows.filter(F.col(dedupe.by).isNotNull())
        .select(*{dedupe.by, DATE_COLUMN, part.column, *ARRIVAL, *([TIME_COLUMN] if part.by_hours else [])})
        .withColumn("_first", F.min(arrival).over(neighbours))
        .filter(arrival > F.col("_first"))
        .withColumn("_value", near if part.by_hours else F.col(part.column))
    )
