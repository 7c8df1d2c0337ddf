"""Rows that fail a rule are counted once, per day and of the last hour, and counting never blocks a batch."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import rule_warnings_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.rule_warnings import (
    KEEP_DAYS,
    RuleWarnings,
    RuleWarningsCounter,
    RuleWarningsSummary,
)
from deltaworks.testing import present
from tests.examples import examples

NOW = dt.datetime(2026, 3, 1, 12, 2, tzinfo=dt.UTC)
RULES = {"purchase": ["priced", "dated"], "session": []}


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def counter(objects: LocalObjects, *, generation: int = 1, rules: dict[str, list[str]] = RULES) -> RuleWarningsCounter:
    return RuleWarningsCounter(objects, "games", rules, generation=generation)


def stored(objects: LocalObjects) -> RuleWarningsSummary:
    return present(read_summary(RuleWarningsSummary, objects, rule_warnings_summary("games"))[0])


def test_landed_and_failed_rows_of_a_minute_are_written_together(objects: LocalObjects) -> None:
    writer = counter(objects)
    writer.add(7, {"purchase": 100, "session": 5}, {"purchase.priced": 3}, at=NOW)
    writer.write(NOW)
    writer.add(8, {"purchase": 50}, {}, at=NOW + dt.timedelta(seconds=30))
    writer.write(NOW + dt.timedelta(seconds=59))
    assert stored(objects).of_rule("purchase", "priced").last_hour(NOW).rows == 100

    writer.write(NOW + dt.timedelta(seconds=60))

    priced, dated = (stored(objects).of_rule("purchase", name).last_hour(NOW) for name in ("priced", "dated"))
    assert (priced.rows, priced.failed, priced.share) == (150, 3, 0.02)
    assert (dated.rows, dated.failed) == (150, 0), "rows that keep the rule are counted too"
    assert [one.table for one in stored(objects).rules] == ["purchase", "purchase"]


def test_a_batch_that_is_reported_twice_counts_once(objects: LocalObjects) -> None:
    for writer in (counter(objects), counter(objects)):  # the second one is the process after a crash
        writer.add(7, {"purchase": 100}, {"purchase.priced": 3}, at=NOW)
        writer.add(7, {"purchase": 100}, {"purchase.priced": 3}, at=NOW)
        writer.write(NOW, force=True)

    assert stored(objects).of_rule("purchase", "priced").days[0].rows == 100


def test_a_stream_that_started_over_counts_from_zero_and_a_removed_rule_is_dropped(objects: LocalObjects) -> None:
    for number, writer in enumerate((counter(objects), counter(objects, generation=2, rules={"purchase": ["priced"]}))):
        writer.add(9 - number, {"purchase": 10 + number}, {}, at=NOW)
        writer.write(NOW, force=True)

    assert [(one.rule, one.days[0].rows) for one in stored(objects).rules] == [("priced", 11)]


def test_nothing_is_written_for_tables_without_a_rule_that_warns(objects: LocalObjects) -> None:
    writer = counter(objects)
    writer.add(1, {"session": 5}, {}, at=NOW)
    writer.write(NOW, force=True)

    assert objects.list("") == []


BATCHES = st.lists(
    st.tuples(st.integers(0, 60 * 24 * 40), st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=20
)


@settings(max_examples=examples(100), deadline=None)
@given(BATCHES, st.integers(0, 120))
def test_days_and_the_last_hour_are_those_of_the_batches(batches: list[tuple[int, int, int]], later: int) -> None:
    ordered = sorted((NOW + dt.timedelta(minutes=minute), rows, min(rows, failed)) for minute, rows, failed in batches)
    counts = RuleWarnings(table="purchase", rule="priced")
    for at, rows, failed in ordered:
        counts = counts.with_rows(rows, failed, at=at)
    last, now = ordered[-1][0], ordered[-1][0] + dt.timedelta(minutes=later)

    dates = {at.date() for at, *_ in ordered if at.date() > (last - dt.timedelta(days=KEEP_DAYS)).date()}
    assert [(one.at, one.rows, one.failed) for one in counts.days] == [
        (
            date.isoformat(),
            sum(rows for at, rows, _ in ordered if at.date() == date),
            sum(failed for at, _, failed in ordered if at.date() == date),
        )
        for date in sorted(dates)
    ]

    def interval(at: dt.datetime) -> dt.datetime:
        return at.replace(minute=at.minute - at.minute % 5, second=0, microsecond=0)

    hour = [(rows, failed) for at, rows, failed in ordered if now - interval(at) <= dt.timedelta(hours=1)]
    found = counts.last_hour(now)
    assert (found.rows, found.failed) == (sum(rows for rows, _ in hour), sum(failed for _, failed in hour))
