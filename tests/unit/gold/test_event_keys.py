"""Duplicates of gold: the key cache, those found in the driver, and dates where another one may now be the first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.gold import event_keys
from deltaworks.gold import plan as plan_module
from deltaworks.gold.event_keys import (
    Arrivals,
    KeyCache,
    find_duplicates,
    find_duplicates_in_driver,
    find_duplicates_in_rows,
)
from deltaworks.gold.file_scan import FileScan
from deltaworks.gold.parts import Part, part_from_hours
from deltaworks.gold.plan import GoldPlan, plan_rebuild
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables.changed_hours import changed_hours, max_seq_by_date
from deltaworks.tables.changes import Changes, Partition
from deltaworks.tables.compaction import compact_partitions
from deltaworks.testing import append_rows, local_lake, present
from tests.examples import examples

KEY, DAYS = "tables/shop/events", [dt.date(2026, 3, day) for day in (1, 2, 3)]
SCHEMA = pa.schema(
    [
        ("event_date", pa.date32()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("event_id", pa.string()),
        ("_seq", pa.int64()),
        ("_position", pa.int64()),
        ("amount", pa.int64()),
    ]
)


class Events:
    """A table of events with a file per date and batch."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        self.lake = local_lake(folder)
        self.root = folder / KEY
        self.remembered = KeyCache(1 << 20)
        self.schema, self._batches = schema, 0

    def land(self, *rows: tuple[dt.date, Any], hour: int = 12) -> None:
        self._batches += 1
        listed = [
            {
                "event_date": date,
                "event_time": dt.datetime.combine(date, dt.time(hour), dt.UTC),
                "event_id": event_id,
                "_seq": self._batches,
                "_position": place,
            }
            for place, (date, event_id) in enumerate(rows)
        ]
        options = {"number": self._batches, "schema": self.schema, "partition_by": ["event_date"]}
        append_rows(self.lake, KEY, listed, **options)

    def copies(
        self, dates: Sequence[dt.date] | None, *, part: Part | None = None, across: int = 1
    ) -> tuple[list[tuple[int, int]], dict[Any, int]] | None:
        part = part or Part("event_date", None if dates is None else frozenset(dates))
        opened = present(self.lake.open(KEY))
        around = part.widen_hours(across) if part.is_hourly else part.widen_days(across)
        scan = FileScan(KEY, opened.version(), around, "event_date", "event_time")
        found = find_duplicates_in_driver(
            self.lake, opened, scan, part, key_column="event_id", window=across, cache=self.remembered
        )
        return None if found is None else (sorted((r["_seq"], r["_position"]) for r in found[0].to_pylist()), found[1])

    def delete_files(self) -> None:
        for path in self.root.rglob("*.parquet"):
            path.unlink()


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path)


def test_later_rows_of_a_date_are_duplicates(events: Events) -> None:
    events.land((DAYS[0], "a"), (DAYS[0], "b"), (DAYS[0], None), (DAYS[0], None))
    events.land((DAYS[1], "a"), (DAYS[2], "b"))
    assert events.copies(DAYS[:2]) == ([(2, 0)], {DAYS[1]: 1})
    assert events.copies(None) == ([(2, 0)], {DAYS[1]: 1})
    assert events.copies(DAYS[2:]) == ([], {})


def test_a_file_is_opened_once(events: Events) -> None:
    events.land((DAYS[0], "a"))
    events.land((DAYS[0], "a"))
    first = events.copies(DAYS[:1])
    events.delete_files()
    events.land((DAYS[0], "a"))
    assert first == ([(2, 0)], {DAYS[0]: 1})
    assert events.copies(DAYS[:1]) == ([(2, 0), (3, 0)], {DAYS[0]: 2})


def test_compacted_files_are_evicted_and_read_again(events: Events) -> None:
    for _ in range(3):
        events.land((DAYS[0], "a"))
    before = events.copies(DAYS[:1])
    compact_partitions(events.lake, events.lake.objects, KEY, None, below_bytes=1 << 20, user_metadata="{}")
    assert events.copies(DAYS[:1]) == before
    assert len(events.remembered._rows) == 1


def test_hours_come_from_event_times(events: Events) -> None:
    events.land((DAYS[0], "a"), hour=3)
    events.land((DAYS[0], "a"), hour=4)
    events.land((DAYS[0], "a"), hour=9)
    hours = [dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC) for hour in (4, 9)]
    assert events.copies(None, part=part_from_hours("event_date", hours)) == ([(2, 0)], {hours[0]: 1})


def test_a_small_cache_evicts_files(events: Events) -> None:
    events.remembered = KeyCache(100)
    for number in range(5):
        events.land(*((DAYS[0], f"id-{number}-{place}") for place in range(3)))
    assert events.copies(DAYS[:1]) == ([], {})
    assert sum(rows.nbytes for rows in events.remembered._rows.values()) <= 100


@pytest.mark.parametrize("bound", ["MAX_KEYS", "MAX_KEY_BYTES", "MAX_UNCACHED_BYTES"])
def test_large_inputs_are_left_to_spark(events: Events, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    events.land((DAYS[0], "a"), (DAYS[0], "a"))
    monkeypatch.setattr(event_keys, bound, 1)
    assert events.copies(DAYS[:1]) is None


def test_key_types_that_arrow_compares_differently_are_left_to_spark(tmp_path: Path) -> None:
    numbers = SCHEMA.set(SCHEMA.get_field_index("event_id"), pa.field("event_id", pa.float64()))
    events = Events(tmp_path, numbers)
    events.land((DAYS[0], 1.5), (DAYS[0], 1.5))
    assert events.copies(DAYS[:1]) is None


def test_hourly_rows_without_an_event_time_are_left_to_spark(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.land((DAYS[0], "a"))
    row = {"event_date": DAYS[0], "event_id": "a", "_seq": 9, "_position": 0}
    append_rows(events.lake, KEY, [row], schema=SCHEMA, number=9)
    assert events.copies(None, part=Part("event_date", frozenset(DAYS), None, frozenset())) is None
    assert events.copies(DAYS) == ([(9, 0)], {DAYS[0]: 1}), "dates are the log's to tell"


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


DAILY = GoldTableSpec.model_validate(
    {"name": "daily", "sql": "x.sql", "reads": ["events"], "partition_by": "event_date"}
)
FIRST = dt.date(2026, 3, 1)
#: A row: date, key, and arrival.
Row = tuple[int, str, int]
MOVED_ROWS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc"), st.integers(0, 9)), max_size=12)


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
@given(MOVED_ROWS, MOVED_ROWS, st.integers(0, 2))
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


ARRIVALS = pa.schema([("event_date", pa.date32()), ("_seq", pa.int64())])


def test_logs_contain_arrivals_unless_rows_were_removed(tmp_path: Path) -> None:
    lake, key = local_lake(tmp_path), "tables/shop/events"

    def land(batch: int, *rows: tuple[int, int]) -> None:
        body = [{"event_date": day(date), "_seq": seq} for date, seq in rows]
        append_rows(lake, key, body, number=batch, schema=ARRIVALS, partition_by=["event_date"])

    land(1, (0, 4), (0, 9), (1, 5))
    land(2, (0, 7), (1, 6))
    opened = present(lake.open(key))
    assert max_seq_by_date(opened, "event_date") == {day(0): 9, day(1): 6}
    assert max_seq_by_date(opened, "day") is None
    born = changed_hours(lake, key, time_column="", after_version=0, up_to_version=opened.version())
    assert born.first_seq == {place(0): 4, place(1): 5}

    opened.delete("event_date = '2026-03-02' and _seq = 5")
    after = changed_hours(lake, key, time_column="", after_version=0, up_to_version=opened.version())
    assert after.first_seq == {place(0): 4}
