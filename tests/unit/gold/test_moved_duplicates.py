"""Dates near a changed one are rebuilt only if another duplicate may now be the first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.gold import plan as plan_module
from deltaworks.gold.plan import GoldPlan, plan_rebuild
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables.changed_hours import changed_hours, max_seq_by_date
from deltaworks.tables.changes import Changes, Partition
from deltaworks.testing import append_rows, local_lake
from tests.examples import examples

DAILY = GoldTableSpec.model_validate(
    {"name": "daily", "sql": "x.sql", "reads": ["events"], "partition_by": "event_date"}
)
FIRST = dt.date(2026, 3, 1)
#: A row: date, key, and arrival.
Row = tuple[int, str, int]
ROWS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc"), st.integers(0, 9)), max_size=12)


def day(number: int) -> dt.date:
    return FIRST + dt.timedelta(days=number)


def place(number: int) -> Partition:
    return (("event_date", day(number).isoformat()),)


def planned(before: Iterable[Row], added: Iterable[Row], across: int) -> GoldPlan:
    first: dict[Partition, int] = {}
    last: dict[dt.date, int | None] = {}
    for date, _, seq in added:
        first[place(date)] = min(seq, first.get(place(date), seq))
    for date, _, seq in (*before, *added):
        last[day(date)] = max(seq, last.get(day(date)) or 0)
    changes = {"events": Changes(frozenset(first), first_seq=first)}
    return plan_rebuild(DAILY, changes, DedupeSpec(within_days=across), None, {"events": last})


def kept(rows: list[Row], across: int) -> dict[int, list[Row]]:
    """Slow oracle: the rows of each date that are no duplicates."""
    first = [
        row for row in rows if not any(k == row[1] and abs(d - row[0]) <= across and s < row[2] for d, k, s in rows)
    ]
    return {date: sorted(row for row in first if row[0] == date) for date in range(7)}


@settings(max_examples=examples(300), deadline=None)
@given(ROWS, ROWS, st.integers(0, 2))
def test_every_date_with_changed_rows_is_rebuilt(before: list[Row], added: list[Row], across: int) -> None:
    one, other = kept(before, across), kept(before + added, across)
    output = planned(before, added, across).output
    assert all(output.contains(day(date)) for date in range(7) if one[date] != other[date])


def test_rows_that_arrive_last_rebuild_only_their_date() -> None:
    assert planned([(0, "a", 1), (1, "a", 2)], [(1, "b", 3)], 1).output.values == {day(1)}


def test_a_date_with_later_rows_may_have_another_first_duplicate() -> None:
    assert planned([(0, "a", 5), (1, "a", 2)], [(1, "b", 3)], 1).output.values == {day(0), day(1)}


def test_without_arrival_order_a_moved_duplicate_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "_first_seq", lambda change, column: {day(1): 99})
    before, added = [(0, "a", 5)], [(1, "a", 3)]
    assert kept(before, 1)[0] != kept(before + added, 1)[0]
    assert not planned(before, added, 1).output.contains(day(0))


def test_unknown_arrival_order_widens_the_dates() -> None:
    changes = {"events": Changes(frozenset([place(1)]))}
    dedupe = DedupeSpec(within_days=1)
    around = {day(0), day(1), day(2)}
    assert plan_rebuild(DAILY, changes, dedupe).output.values == around
    known = {"events": {day(0): 1, day(1): 2, day(2): None}}
    assert plan_rebuild(DAILY, changes, dedupe, None, known).output.values == around
    arrived = {"events": Changes(frozenset([place(1)]), first_seq={place(1): 5})}
    assert plan_rebuild(DAILY, arrived, dedupe, None, known).output.values == {day(1), day(2)}


SCHEMA = pa.schema([("event_date", pa.date32()), ("_seq", pa.int64())])


def test_logs_contain_arrivals_unless_rows_were_removed(tmp_path: Path) -> None:
    lake, key = local_lake(tmp_path), "tables/shop/events"

    def land(batch: int, *rows: tuple[int, int]) -> None:
        body = [{"event_date": day(date), "_seq": seq} for date, seq in rows]
        append_rows(lake, key, body, number=batch, schema=SCHEMA, partition_by=["event_date"])

    land(1, (0, 4), (0, 9), (1, 5))
    land(2, (0, 7), (1, 6))
    opened = lake.open(key)
    assert opened is not None
    assert max_seq_by_date(opened, "event_date") == {day(0): 9, day(1): 6}
    assert max_seq_by_date(opened, "day") is None
    born = changed_hours(lake, key, time_column="", after_version=0, up_to_version=opened.version())
    assert born.first_seq == {place(0): 4, place(1): 5}

    opened.delete("event_date = '2026-03-02' and _seq = 5")
    after = changed_hours(lake, key, time_column="", after_version=0, up_to_version=opened.version())
    assert after.first_seq == {place(0): 4}
