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
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The rows to leave out of a part of an input, by ARRIVAL, and how many there are of each of its dates, hours or
    other values."""

    rows: DataFrame
    count_by_value: Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows with a key each: its number, the day or hour of the row, counted from 1970, and when it arrived."""

    keys: Int64Array
    buckets: Int64Array
    seqs: Int64Array
    positions: Int64Array

    def take(self, indices: Int64Array) -> Arrivals:
        """Those of some rows, by their places."""
        return Arrivals(self.keys[indices], self.buckets[indices], self.seqs[indices], self.positions[indices])


def window_size(dedupe: DedupeSpec, part: Part) -> int:
    """How many dates copies in a part may lie apart, or hours in one that is told apart by hours."""
    return (dedupe.within_hours or 0) if part.is_hourly else dedupe.within_days


def window_part(dedupe: DedupeSpec, part: Part) -> Part:
    """The rows among which it is decided which of a part are copies."""
    if part.is_hourly:
        return part.widen_hours(window_size(dedupe, part))
    return part.widen_days(window_size(dedupe, part)) if part.column == DATE_COLUMN else part


def find_duplicates(rows: Arrivals, window: int) -> Int64Array:
    """The places of the rows that are copies, in ascending order.

    Args:
        across: how far apart copies may lie.
    """
    counts = np.bincount(rows.keys)
    candidates = np.flatnonzero(counts[rows.keys] > 1)
    if not len(candidates):
        return candidates
    shared = rows.take(candidates)
    ranks = _arrival_ranks(shared.seqs, shared.positions)
    # The first of each key in each date: sorted behind one another, with numbers that differ by the dates between.
    first_bucket = int(shared.buckets.min())
    bucket_span = int(shared.buckets.max()) - first_bucket
    window = min(window, bucket_span)
    group_numbers = shared.keys * (bucket_span + 2 * window + 1) + (shared.buckets - first_bucket + window)
    order = np.lexsort((ranks, group_numbers))
    groups, starts, group_of = np.unique(group_numbers[order], return_index=True, return_inverse=True)
    earliest = ranks[order][starts]
    least = earliest.copy()
    for offset in range(-window, window + 1):
        neighbour = np.minimum(np.searchsorted(groups, groups + offset), len(groups) - 1)
        exists = groups[neighbour] == groups + offset
        least[exists] = np.minimum(least[exists], earliest[neighbour[exists]])
    is_duplicate = np.empty(len(candidates), np.bool_)
    is_duplicate[order] = ranks[order] > least[group_of]
    return candidates[is_duplicate]


def _arrival_ranks(seqs: Int64Array, positions: Int64Array) -> Int64Array:
    """The order of arrival, the same for rows that say the same of it."""
    order = np.lexsort((positions, seqs))
    later = (np.diff(seqs[order]) != 0) | (np.diff(positions[order]) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(later)))
    return ranks


def find_duplicates_in_rows(
    rows: pa.Table, buckets: Int64Array, part: Part, *, window: int
) -> tuple[pa.Table, dict[Any, int]]:
    """The copies among rows that are in a part, by ARRIVAL, and how many there are of each date or hour.

    Args:
        rows: their keys, without null, in the first column, and ARRIVAL.
        near: of each row, the day or hour it is of.
        across: how far apart copies may lie.
    """
    keys = rows.column(0).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    seqs, positions = (rows.column(name).to_numpy().astype(np.int64) for name in ARRIVAL)
    duplicates = find_duplicates(Arrivals(keys, buckets, seqs, positions), window)
    numbers, counts = np.unique(buckets[duplicates], return_counts=True)
    values = [hour_from_number(number) if part.is_hourly else _EPOCH + timedelta(number) for number in numbers.tolist()]
    is_in_part = np.array([part.contains(value) for value in values], np.bool_)
    duplicates = duplicates[np.isin(buckets[duplicates], numbers[is_in_part])]
    count_by_value = {
        value: count for value, count, has in zip(values, counts.tolist(), is_in_part, strict=True) if has
    }
    return rows.select(ARRIVAL).take(duplicates), count_by_value


def hour_from_number(number: int) -> datetime:
    """The first instant of an hour, by how many there were since 1970."""
    return datetime.fromtimestamp(number * _HOUR_SECONDS, UTC)


def find_duplicates_with_spark(rows: DataFrame, part: Part, dedupe: DedupeSpec) -> DataFrame:
    """The copies of all dates, hours or values of `rows`, by ARRIVAL, with that value of each.

    Args:
        rows: of `around` the part.
    """
    by_date = part.column == DATE_COLUMN
    bucket = F.floor(F.unix_seconds(F.col(TIME_COLUMN)) / _HOUR_SECONDS) if part.is_hourly else F.unix_date(DATE_COLUMN)
    arrival, window = F.struct(*ARRIVAL), window_size(dedupe, part)
    neighbours = (
        Window.partitionBy(dedupe.by, *([] if by_date else [part.column])).orderBy(bucket).rangeBetween(-window, window)
    )
    return (
        rows.filter(F.col(dedupe.by).isNotNull())
        .select(*{dedupe.by, DATE_COLUMN, part.column, *ARRIVAL, *([TIME_COLUMN] if part.is_hourly else [])})
        .withColumn("_first", F.min(arrival).over(neighbours))
        .filter(arrival > F.col("_first"))
        .withColumn("_value", bucket if part.is_hourly else F.col(part.column))
    )
