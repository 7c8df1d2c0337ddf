"""Open rows are counted once, and counting never blocks a batch."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects, ObjectStore, StoredObject
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.quarantine import (
    MAX_KINDS,
    OpenRowCount,
    QuarantineCounter,
    QuarantineSummary,
    recount,
)

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
KEY = quarantine_summary("games")


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def counts(objects: ObjectStore, *, generation: int = 1) -> QuarantineCounter:
    return QuarantineCounter(objects, "games", generation=generation, spec="4f2a")


def stored(objects: LocalObjects) -> QuarantineSummary:
    summary, _ = read_summary(QuarantineSummary, objects, KEY)
    assert summary is not None
    return summary


def rows(summary: QuarantineSummary) -> dict[tuple[str, str], int]:
    return {(row.reason, row.event): row.rows for row in summary.open_rows}


def test_batches_of_a_minute_are_written_together(objects: LocalObjects) -> None:
    writer = counts(objects)
    writer.add(7, [("malformed", "", "", 2)], at=NOW)
    writer.write(NOW)
    writer.add(8, [("malformed", "", "", 1), ("unknown_event", "shop_v3", "", 4)], at=NOW)
    writer.write(NOW + dt.timedelta(seconds=59))
    assert rows(stored(objects)) == {("malformed", ""): 2}

    writer.write(NOW + dt.timedelta(seconds=60))

    assert rows(stored(objects)) == {("unknown_event", "shop_v3"): 4, ("malformed", ""): 3}
    assert (stored(objects).through_batch, stored(objects).open_rows[0].date) == (8, "2026-03-01")
    assert stored(objects).open_rows[0].spec == "4f2a"


def test_a_batch_that_a_restart_reports_again_counts_once(objects: LocalObjects) -> None:
    for _ in range(2):
        writer = counts(objects)
        writer.add(7, [("malformed", "", "", 2)], at=NOW)
        writer.write(NOW, force=True)

    assert rows(stored(objects)) == {("malformed", ""): 2}


def test_the_stream_does_not_add_rows_of_a_recount(objects: LocalObjects) -> None:
    writer = counts(objects)
    writer.add(7, [("malformed", "", "", 2)], at=NOW)
    writer.add(8, [("malformed", "", "", 5)], at=NOW)
    row = {
        "quarantine_date": NOW.date(),
        "code": "malformed",
        "path": "",
        "event_name": None,
        "spec_fingerprint": "4f2a",
        "rows": 1,
    }
    objects.put(KEY, recount("games", [row], generation=1, through_batch=7, at=NOW).encode())

    writer.write(NOW)

    assert rows(stored(objects)) == {("malformed", ""): 6}


def test_a_concurrent_write_is_retried_at_the_next_interval(objects: LocalObjects) -> None:
    class Overtaken(LocalObjects):
        def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
            return None

    objects.put(KEY, recount("games", [], generation=1, through_batch=6, at=NOW).encode())
    overtaken = Overtaken(objects._root)
    writer = counts(overtaken)
    writer.add(7, [("malformed", "", "", 2)], at=NOW)
    writer.write(NOW)
    assert rows(stored(objects)) == {}

    writer._objects = objects
    writer.write(NOW + dt.timedelta(minutes=1))

    assert rows(stored(objects)) == {("malformed", ""): 2}


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "pipeline": 3}'])
def test_a_damaged_summary_and_one_of_another_generation_are_restarted(objects: LocalObjects, torn: bytes) -> None:
    objects.put(KEY, torn)
    writer = counts(objects, generation=2)
    writer.add(0, [("malformed", "", "", 2)], at=NOW)

    writer.write(NOW)

    assert (rows(stored(objects)), stored(objects).generation) == ({("malformed", ""): 2}, 2)
    other = counts(objects, generation=3)
    other.add(0, [("malformed", "", "", 1)], at=NOW)
    other.write(NOW)
    assert rows(stored(objects)) == {("malformed", ""): 1}


class MemoryObjects:
    """An object store in memory."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def get(self, key: str) -> StoredObject | None:
        data = self._data.get(key)
        return None if data is None else StoredObject(data, hashlib.sha256(data).hexdigest())

    def etag(self, key: str) -> str | None:
        item = self.get(key)
        return None if item is None else item.etag

    def put(self, key: str, data: bytes) -> None:
        self._data[key] = data

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._data.setdefault(key, data) == data

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        if self.etag(key) != etag:
            return None
        self.put(key, data)
        return self.etag(key)

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self._data if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self._data.pop(key, None)


kinds = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from(["", "x"]), st.sampled_from(["", "f"]), st.integers(1, 5)
)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(kinds, max_size=4), max_size=8),
    recount_after=st.integers(0, 8),
    written_each=st.integers(1, 4),
)
def test_stream_and_recounts_count_every_row_once(
    batches: list[list[tuple[str, str, str, int]]],
    recount_after: int,
    written_each: int,
) -> None:
    objects = MemoryObjects()
    writer, oracle = counts(objects), Counter[tuple[str, str, str]]()
    for number, batch in enumerate(batches):
        merged = Counter[tuple[str, str, str]]()
        for reason, event, field, events in batch:
            merged[reason, event, field] += events
        oracle.update(merged)
        writer.add(number, [(*kind, events) for kind, events in merged.items()], at=NOW)
        if number == recount_after:
            table = [
                {"quarantine_date": NOW.date(), "code": code, "event_name": event, "path": field}
                | {"spec_fingerprint": "s", "rows": n}
                for (code, event, field), n in oracle.items()
            ]
            objects.put(KEY, recount("games", table, generation=1, through_batch=number, at=NOW).encode())
        if number % written_each == 0:
            writer.write(NOW, force=True)
    writer.write(NOW, force=True)

    summary, _ = read_summary(QuarantineSummary, objects, KEY)
    counted = Counter[tuple[str, str, str]]()
    for row in summary.open_rows if summary is not None else ():
        counted[row.reason, row.event, row.field] += row.rows
    assert counted == oracle


def test_the_rarest_of_too_many_kinds_are_counted_together() -> None:
    many = [
        OpenRowCount(date="2026-03-01", reason="unknown_event", event=f"e{n}", rows=n + 1) for n in range(MAX_KINDS + 3)
    ]

    summary = QuarantineSummary(pipeline="games", at="").with_rows(many)

    assert len(summary.open_rows) == MAX_KINDS
    assert summary.other_rows == 1 + 2 + 3
    assert len(summary.encode()) < 100_000
