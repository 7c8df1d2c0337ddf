"""Computes in this process the periods of ids whose rows a batch changes, as `interval_diff` does with Spark.

The functions have the names, inputs and results of those in `interval_diff`, with lists in place of DataFrames; the
docstrings there describe them. Times are microseconds since 1970.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from deltaworks.mutations.local_resolve import Interval
from deltaworks.mutations.small_merge import MAX_LISTED_ORGANISATIONS, AffectedRange
from deltaworks.tables.duckdb_session import duckdb_session

if TYPE_CHECKING:
    import duckdb

#: The final state of rows: id, whether they are deleted, and the fields that are set, by name.
Outcome = tuple[str, bool, tuple[tuple[str, str], ...]]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class _Edge:
    """Start (`begins`) or end of an interval. The start of the next interval takes precedence at a shared point."""

    begins: bool
    start: int | None = None
    end: int | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPeriod:
    """A period in which the outcome differs from before, or with late rows; `start` and `end` are those of the interval
    that contains it, if it is `inside` one.
    """

    org_id: str
    id: str
    valid_from: int | None
    valid_to: int | None
    before: Outcome | None = None
    after: Outcome | None
    inside: bool
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A period with the final state of its rows. Periods of an id do not overlap."""

    org_id: str
    id: str
    valid_from: int | None
    valid_to: int | None
    final_id: str
    deleted: bool
    fields: Mapping[str, str]


def moment(micros: int) -> dt.datetime:
    """Returns the time of this number of microseconds since 1970.

    Raises:
        OverflowError: the year is not within 1 and 9999.
    """
    return _EPOCH + dt.timedelta(microseconds=micros)


def outcome_of(interval: Interval) -> Outcome | None:
    """Returns the outcome of an interval; None if it changes nothing."""
    fields = tuple(sorted((name, value) for name, value in interval.fields.items() if value is not None))
    if interval.final_id == interval.id and not interval.deleted and not fields:
        return None
    return interval.final_id, interval.deleted, fields


def changed_periods(old: Iterable[Interval], new: Iterable[Interval]) -> list[ChangedPeriod]:
    """Returns the periods in which two sets of intervals have different outcomes."""
    points: dict[tuple[str, str], dict[int | None, list[_Edge | None]]] = defaultdict(dict)
    for side, intervals in enumerate((old, new)):
        for interval in intervals:
            by_time = points[interval.org_id, interval.id]
            for at, edge in _edges(interval):
                edges = by_time.setdefault(at, [None, None])
                present = edges[side]
                edges[side] = edge if present is None or edge.begins else present
    return [period for key in sorted(points) for period in _differences(key, points[key])]


def _edges(interval: Interval) -> Iterator[tuple[int | None, _Edge]]:
    yield interval.valid_from, _Edge(True, interval.valid_from, interval.valid_to, outcome_of(interval))
    if interval.valid_to is not None:
        yield interval.valid_to, _Edge(False)


def _differences(key: tuple[str, str], points: Mapping[int | None, Sequence[_Edge | None]]) -> Iterator[ChangedPeriod]:
    org_id, name = key
    times = sorted(points, key=lambda at: (at is not None, at or 0))
    old = new = _Edge(False)
    for number, at in enumerate(times):
        old_edge, new_edge = points[at]
        old, new = old_edge or old, new_edge or new
        if old.outcome == new.outcome:
            continue
        yield ChangedPeriod(
            org_id=org_id,
            id=name,
            valid_from=at,
            valid_to=times[number + 1] if number + 1 < len(times) else None,
            before=old.outcome,
            after=new.outcome,
            inside=new.begins,
            start=new.start,
            end=new.end,
        )


def late_row_periods(arrived_rows: pa.Table, intervals: Iterable[Interval]) -> list[ChangedPeriod]:
    """Returns the intervals that contain late rows, clipped to the time range of these rows.

    Args:
        arrived_rows: columns org_id, id (as it arrived) and time (timestamp) of rows.
    """
    effective = [(interval, outcome) for interval in intervals if (outcome := outcome_of(interval)) is not None]
    if not effective or not arrived_rows.num_rows:
        return []
    connection: duckdb.DuckDBPyConnection = duckdb_session()
    try:
        connection.register("arrived_rows", arrived_rows)
        connection.register("intervals", _interval_table(interval for interval, _ in effective))
        ranges = connection.execute(
            """
            SELECT intervals.number, min(epoch_us(arrived_rows.time)), max(epoch_us(arrived_rows.time))
            FROM arrived_rows JOIN intervals USING (org_id, id)
            WHERE (valid_from IS NULL OR epoch_us(arrived_rows.time) >= valid_from)
              AND (valid_to IS NULL OR epoch_us(arrived_rows.time) < valid_to)
            GROUP BY intervals.number ORDER BY intervals.number
            """
        ).fetchall()
    finally:
        connection.close()
    periods = []
    for number, first, last in ranges:
        interval, outcome = effective[int(number)]
        periods.append(_late_period(interval, outcome, first, None if last is None else last + 1))
    return periods


def _interval_table(intervals: Iterable[Interval]) -> pa.Table:
    rows = [(number, one.org_id, one.id, one.valid_from, one.valid_to) for number, one in enumerate(intervals)]
    number, org_id, name, start, end = zip(*rows, strict=True)
    return pa.table(
        {
            "number": pa.array(number, pa.int64()),
            "org_id": pa.array(org_id, pa.string()),
            "id": pa.array(name, pa.string()),
            "valid_from": pa.array(start, pa.int64()),
            "valid_to": pa.array(end, pa.int64()),
        }
    )


def _late_period(interval: Interval, outcome: Outcome, start: int | None, end: int | None) -> ChangedPeriod:
    return ChangedPeriod(
        org_id=interval.org_id,
        id=interval.id,
        valid_from=start,
        valid_to=end,
        after=outcome,
        inside=True,
        start=interval.valid_from,
        end=interval.valid_to,
    )


def merge_periods(changed: Sequence[ChangedPeriod], late: Iterable[ChangedPeriod]) -> list[Period]:
    """Merges both sets into periods that do not overlap: one per new interval, and those outside intervals."""
    by_interval: dict[tuple[str, str, int | None, int | None], list[ChangedPeriod]] = defaultdict(list)
    for period in (*(one for one in changed if one.inside), *late):
        by_interval[period.org_id, period.id, period.start, period.end].append(period)
    periods = [_merged(periods) for periods in by_interval.values()]
    periods += [_period(one, one.valid_from, one.valid_to, one.after) for one in changed if not one.inside]
    return periods


def _merged(periods: Sequence[ChangedPeriod]) -> Period:
    starts, ends = [one.valid_from for one in periods], [one.valid_to for one in periods]
    start = None if None in starts else min(at for at in starts if at is not None)
    end = None if None in ends else max(at for at in ends if at is not None)
    return _period(periods[0], start, end, next((one.after for one in periods if one.after is not None), None))


def _period(like: ChangedPeriod, start: int | None, end: int | None, after: Outcome | None) -> Period:
    final_id, deleted, fields = after or (like.id, False, ())
    return Period(
        org_id=like.org_id,
        id=like.id,
        valid_from=start,
        valid_to=end,
        final_id=final_id,
        deleted=deleted,
        fields=dict(fields),
    )


def affected_range(periods: Sequence[Period]) -> AffectedRange:
    """Returns the range of rows that these periods can change."""
    organisations, ids = sorted({one.org_id for one in periods}), [one.id for one in periods]
    starts, ends = [one.valid_from for one in periods], [one.valid_to for one in periods]
    since = min((at for at in starts if at is not None), default=None) if None not in starts else None
    until = max((at for at in ends if at is not None), default=None) if None not in ends else None
    return AffectedRange(
        periods=len(periods),
        organisations=tuple(organisations) if len(organisations) <= MAX_LISTED_ORGANISATIONS else None,
        first_organisation=min(organisations, default=None),
        last_organisation=max(organisations, default=None),
        first_id=min(ids, default=None),
        last_id=max(ids, default=None),
        since=None if since is None else moment(since),
        until=None if until is None else moment(until),
    )
