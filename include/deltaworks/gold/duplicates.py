"""Finds duplicate events: rows whose key arrived earlier within the dedupe window.

The window is a number of dates or hours; rows are ordered by `_seq`, then `_position`. Spark uses a window function,
which sorts all rows by key. In the driver, Arrow maps keys to integers, and only keys that occur more than once are
compared.
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

#: Columns that identify a row of a table and order rows by arrival.
ARRIVAL = ("_seq", "_position")
_HOUR_SECONDS = 3_600
_EPOCH = date(1970, 1, 1)
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Duplicate rows of a part of an input, identified by the ARRIVAL columns, with counts per date, hour or partition
    value.
    """

    rows: DataFrame
    count_by_value: Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows as arrays: the integer of the key, the bucket (days or hours since 1970), `_seq` and `_position`."""

    keys: Int64Array
    buckets: Int64Array
    seqs: Int64Array
    positions: Int64Array

    def take(self, indices: Int64Array) -> Arrivals:
        """Returns the rows at these indices."""
        return Arrivals(self.keys[indices], self.buckets[indices], self.seqs[indices], self.positions[indices])


def window_size(dedupe: DedupeSpec, part: Part) -> int:
    """Returns the dedupe window in hours for an hourly part, else in dates."""
    return (dedupe.within_hours or 0) if part.is_hourly else dedupe.within_days


def dedupe_window_part(dedupe: DedupeSpec, part: Part) -> Part:
    """Returns the part widened by the dedupe window. Its rows decide which rows of the part are duplicates."""
    if part.is_hourly:
        return part.widen_hours(window_size(dedupe, part))
    return part.widen_days(window_size(dedupe, part)) if part.column == DATE_COLUMN else part


def find_duplicates(rows: Arrivals, window: int) -> Int64Array:
    """Returns the indices of duplicate rows, ascending.

    Args:
        window: the dedupe window in buckets.
    """
    counts = np.bincount(rows.keys)
    candidates = np.flatnonzero(counts[rows.keys] > 1)
    if not len(candidates):
        return candidates
    shared = rows.take(candidates)
    ranks = _arrival_ranks(shared.seqs, shared.positions)
    # Find the earliest row of each key and bucket: group numbers of neighbouring buckets of a key are consecutive.
    first_bucket = int(shared.buckets.min())
    bucket_span = int(shared.buckets.max()) - first_bucket
    window = min(window, bucket_span)
    group_numbers = shared.keys * (bucket_span + 2 * window + 1) + (shared.buckets - first_bucket + window)
    order = np.lexsort((ranks, group_numbers))
    groups, starts, group_of = np.unique(group_numbers[order], return_index=True, return_inverse=True)
    earliest = ranks[order][starts]
    earliest_in_window = earliest.copy()
    for offset in range(-window, window + 1):
        neighbour = np.minimum(np.searchsorted(groups, groups + offset), len(groups) - 1)
        exists = groups[neighbour] == groups + offset
        earliest_in_window[exists] = np.minimum(earliest_in_window[exists], earliest[neighbour[exists]])
    is_duplicate = np.empty(len(candidates), np.bool_)
    is_duplicate[order] = ranks[order] > earliest_in_window[group_of]
    return candidates[is_duplicate]


def _arrival_ranks(seqs: Int64Array, positions: Int64Array) -> Int64Array:
    """Ranks rows by arrival; rows with equal `_seq` and `_position` share a rank."""
    order = np.lexsort((positions, seqs))
    later = (np.diff(seqs[order]) != 0) | (np.diff(positions[order]) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(later)))
    return ranks


def find_duplicates_in_rows(
    rows: pa.Table, buckets: Int64Array, part: Part, *, window: int
) -> tuple[pa.Table, dict[Any, int]]:
    """Returns the ARRIVAL columns of the duplicate rows of a part, and their count per date or hour.

    Args:
        rows: the non-null keys in the first column, then the ARRIVAL columns.
        buckets: the day or hour of each row.
        window: the dedupe window in buckets.
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
    """Returns the start of the hour with this number of hours since 1970."""
    return datetime.fromtimestamp(number * _HOUR_SECONDS, UTC)


def find_duplicates_with_spark(rows: DataFrame, part: Part, dedupe: DedupeSpec) -> DataFrame:
    """Returns the ARRIVAL columns of duplicate rows, each with its date, hour or partition value in `_value`.

    Args:
        rows: the rows of `dedupe_window_part` of the part.
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
