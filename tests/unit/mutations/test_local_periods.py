"""Periods that a batch changes, computed without Spark: at each time they give the outcome of the new intervals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.mutations.local_periods import (
    ChangedPeriod,
    Outcome,
    Period,
    affected_range,
    changed_periods,
    late_row_periods,
    merge_periods,
    moment,
    outcome_of,
)
from deltaworks.mutations.local_resolve import Interval, resolve_locally
from deltaworks.testing import present
from tests.spark.mutations.cases import Log, logs
from tests.unit.mutations.test_local_resolve import at, requests_of

PROBES = [at(half / 2) for half in range(-1, 20)]
IDS = "abcde"


def covering(periods: Iterable[Any], name: str, time: int) -> list[Any]:
    return [
        one
        for one in periods
        if one.id == name
        and (one.valid_from is None or one.valid_from <= time)
        and (one.valid_to is None or time < one.valid_to)
    ]


def outcome_at(intervals: Iterable[Interval], name: str, time: int) -> Outcome | None:
    """The slow way: looks through all intervals."""
    found = covering(intervals, name, time)
    assert len(found) <= 1
    return outcome_of(found[0]) if found else None


def outcome_in(period: Period) -> Outcome | None:
    fields = tuple(sorted(period.fields.items()))
    return (
        None
        if (period.final_id, period.deleted, fields) == (period.id, False, ())
        else (
            period.final_id,
            period.deleted,
            fields,
        )
    )


@given(logs(), logs())
def test_changed_periods_are_where_the_outcomes_differ(first: Log, second: Log) -> None:
    old, new = resolve_locally(requests_of([first])), resolve_locally(requests_of([first + second]))

    changed = changed_periods(old, new)

    for name in IDS:
        for time in PROBES:
            before, after = outcome_at(old, name, time), outcome_at(new, name, time)
            found: list[ChangedPeriod] = covering(changed, name, time)
            assert [(one.before, one.after) for one in found] == ([] if before == after else [(before, after)])


@given(logs(), logs(), st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(PROBES)), max_size=6))
def test_merged_periods_cover_changes_and_late_rows_and_give_the_new_outcome(
    first: Log, second: Log, rows: list[tuple[str, int]]
) -> None:
    old, new = resolve_locally(requests_of([first])), resolve_locally(requests_of([first + second]))
    changed = changed_periods(old, new)
    arrived = pa.table(
        {
            "org_id": pa.array(["0"] * len(rows), pa.string()),
            "id": pa.array([name for name, _ in rows], pa.string()),
            "time": pa.array([moment(time) for _, time in rows], pa.timestamp("us", tz="UTC")),
        }
    )

    periods = merge_periods(changed, late_row_periods(arrived, new))

    for name in IDS:
        for time in PROBES:
            after = outcome_at(new, name, time)
            found = covering(periods, name, time)
            assert len(found) <= 1
            assert [outcome_in(one) for one in found] == [after] * len(found)
            is_late = (name, time) in rows and after is not None
            if is_late or outcome_at(old, name, time) != after:
                assert found, (name, time)
    bounds = affected_range(periods)
    assert bounds.periods == len(periods)
    for one in periods:
        assert present(bounds.first_id) <= one.id
        assert bounds.since is None or (one.valid_from is not None and moment(one.valid_from) >= bounds.since)
        assert bounds.until is None or (one.valid_to is not None and moment(one.valid_to) <= bounds.until)


def test_moments_are_in_utc() -> None:
    assert moment(1_500_000) == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)
