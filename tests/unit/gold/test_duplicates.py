"""Duplicates found in the driver match a pairwise comparison."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.gold.event_keys import Arrivals, find_duplicates, find_duplicates_in_rows
from deltaworks.gold.parts import Part, part_from_hours
from tests.examples import examples

DAY = dt.date(2026, 3, 1)
NUMBER = (DAY - dt.date(1970, 1, 1)).days
#: Per row: key, date or hour, and arrival; few distinct values, so that many rows collide.
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=40)


def by_looking_at_all_pairs(rows: list[tuple[int, int, int, int]], across: int) -> list[int]:
    return [
        place
        for place, (key, near, *arrival) in enumerate(rows)
        if any(k == key and abs(n - near) <= across and arrived < arrival for k, n, *arrived in rows)
    ]


@settings(max_examples=examples(400), deadline=None)
@given(ROWS, st.sampled_from([0, 1, 2, 5, 20, 10_000]))
def test_a_row_is_a_duplicate_if_its_key_arrived_earlier_within_the_window(
    rows: list[tuple[int, int, int, int]], across: int
) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    assert find_duplicates(Arrivals(*columns), across).tolist() == by_looking_at_all_pairs(rows, across)


def arrivals(*rows: tuple[str, int, int]) -> pa.Table:
    keys, seqs, positions = zip(*rows, strict=True)
    return pa.table({"event_id": keys, "_seq": seqs, "_position": positions})


def test_neighbouring_dates_decide_but_are_not_reported() -> None:
    rows = arrivals(("a", 1, 0), ("a", 2, 0), ("b", 2, 1), ("a", 3, 0))
    near = np.array([NUMBER - 1, NUMBER, NUMBER, NUMBER + 1])
    copied, counts = find_duplicates_in_rows(rows, near, Part("event_date", frozenset({DAY})), window=1)
    assert copied.to_pylist() == [{"_seq": 2, "_position": 0}]
    assert counts == {DAY: 1}


def test_hourly_duplicates_are_counted_by_hour() -> None:
    hours = [dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC) for hour in (5, 6, 9)]
    near = np.array([int(hour.timestamp()) // 3600 for hour in hours])
    rows = arrivals(("a", 1, 0), ("a", 2, 0), ("a", 3, 0))
    _, counts = find_duplicates_in_rows(rows, near, part_from_hours("event_date", hours), window=2)
    assert counts == {hours[1]: 1}, "nine is three hours from six"


def test_no_rows_have_no_duplicates() -> None:
    rows = arrivals(("a", 1, 0)).slice(0, 0)
    copied, counts = find_duplicates_in_rows(rows, np.empty(0, np.int64), Part("event_date", None), window=1)
    assert copied.num_rows == 0
    assert counts == {}
