"""The key cache: each file is read once, and large inputs are left to Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.gold import event_keys
from deltaworks.gold.event_keys import KeyCache, find_duplicates_in_driver
from deltaworks.gold.file_scan import FileScan
from deltaworks.gold.parts import Part, part_from_hours
from deltaworks.tables.commit import Step
from deltaworks.tables.compaction import compact_partitions
from deltaworks.testing import append_rows, local_lake

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
        opened = self.lake.open(KEY)
        assert opened is not None
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
    body = pa.Table.from_pylist([{"event_date": DAYS[0], "event_id": "a", "_seq": 9, "_position": 0}], schema=SCHEMA)
    opened = events.lake.open(KEY)
    assert opened is not None
    events.lake.append(opened, KEY, body, step=Step("lands", 9), user_metadata="{}")
    assert events.copies(None, part=Part("event_date", frozenset(DAYS), None, frozenset())) is None
    assert events.copies(DAYS) == ([(9, 0)], {DAYS[0]: 1}), "dates are the log's to tell"
