"""Nightly runs are kept in order, once each, and up to a limit."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.nights import MAX_NIGHTS, Night, NightsSummary, record_night
from deltaworks.control.summaries.tables import MAX_NIGHTS as TABLE_NIGHTS
from deltaworks.control.summaries.tables import HealthPoint, TableSummary, add_night

STARTED_AT = dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC)


def night(number: int, *, run: str = "") -> Night:
    at = STARTED_AT + dt.timedelta(days=number)
    return Night(
        run=run or f"run {number}", date=at.date().isoformat(), started_at=at.isoformat(), ended_at=at.isoformat()
    )


def stored_nights(objects: LocalObjects) -> tuple[Night, ...]:
    item = objects.get(nights_summary("games"))
    assert item is not None
    return NightsSummary.decode(item.data, key="k").nights


def test_the_newest_nights_are_kept_newest_first(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    for number in range(MAX_NIGHTS + 5):
        assert record_night(objects, "games", night(number))

    assert [one.run for one in stored_nights(objects)] == [f"run {number}" for number in range(MAX_NIGHTS + 4, 4, -1)]


def test_a_repeated_run_replaces_itself(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    record_night(objects, "games", night(1))
    record_night(objects, "games", night(2))
    record_night(objects, "games", night(1).replace(is_manual=True))

    assert [(one.run, one.is_manual) for one in stored_nights(objects)] == [("run 2", False), ("run 1", True)]


@pytest.mark.parametrize("torn", [b"", b"{", b"null", b'{"format": 2, "pipeline": "games"}'])
def test_a_damaged_summary_is_restarted(tmp_path: Path, torn: bytes) -> None:
    objects = LocalObjects(tmp_path)
    objects.put(nights_summary("games"), torn)

    assert record_night(objects, "games", night(1))

    assert [one.run for one in stored_nights(objects)] == ["run 1"]


def test_concurrent_records_do_not_lose_a_night(tmp_path: Path) -> None:
    class Raced(LocalObjects):
        raced = False

        def put_if_absent(self, key: str, data: bytes) -> bool:
            if not self.raced:
                self.raced = True
                assert record_night(self, "games", night(1))
            return super().put_if_absent(key, data)

    objects = Raced(tmp_path)
    assert record_night(objects, "games", night(2))

    assert [one.run for one in stored_nights(objects)] == ["run 2", "run 1"]


def test_a_table_keeps_one_point_per_date() -> None:
    earlier = [
        HealthPoint(date=(STARTED_AT + dt.timedelta(days=n)).date().isoformat(), score=n, bytes=n) for n in range(40)
    ]
    table = TableSummary(name="events", kind="bronze", score=99, bytes=7)

    (once,) = add_night([table], {"events": earlier}, date="2026-02-10")
    (twice,) = add_night([table.replace(score=50)], {"events": once.nights}, date="2026-02-10")

    assert len(twice.nights) == TABLE_NIGHTS
    assert twice.nights[-2:] == (earlier[-1], HealthPoint(date="2026-02-10", score=50, bytes=7))


def test_an_unreadable_table_gets_no_point() -> None:
    (table,) = add_night([TableSummary(name="events", kind="bronze", error="torn")], {}, date="2026-02-10")

    assert table.nights == ()
