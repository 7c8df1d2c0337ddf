"""Onwards changes rebuild all dates that differ, after any late row."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.gold.parts import Part
from deltaworks.gold.plan import GoldPlan, dated_plan, plan_rebuild
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables.changes import Changes

START = dt.date(2025, 3, 20)
PRICED = GoldTableSpec.model_validate(
    {
        "name": "price_with_eps",
        "sql": "x.sql",
        "reads": ["prices", "eps_known", "splits"],
        "partition_by": "price_date",
        "affects": {"prices": {"days": [0]}, "eps_known": "onwards", "splits": "all"},
    }
)
COLUMNS = {"prices": "event_date", "eps_known": "valid_from", "splits": ""}


def day(number: int) -> dt.date:
    return START + dt.timedelta(days=number)


def at(column: str, *days: int) -> Changes:
    return Changes(frozenset(((column, day(number).isoformat()),) for number in days))


def planned(dedupe: DedupeSpec | None = None, **changes: Changes) -> GoldPlan:
    return plan_rebuild(PRICED, changes, dedupe, COLUMNS)


def test_an_onwards_change_rebuilds_every_date_from_its_date() -> None:
    plan = planned(prices=at("event_date", 2, 9), eps_known=at("valid_from", 5, 7))

    assert plan.output == Part("price_date", frozenset([day(2)]), day(5))
    assert plan.output.labels == ("2025-03-22", "2025-03-25..")
    assert plan.input_of("prices") == Part("event_date", frozenset([day(2)]), day(5))
    assert plan.input_of("eps_known") == plan.input_of("splits") == Part("event_date", None)
    assert plan.has_work
    assert not plan.full
    assert "every date from 2025-03-25 on" in plan.reason


def test_a_change_of_one_input_affects_only_its_dates() -> None:
    assert planned(prices=at("event_date", 2)).output == Part("price_date", frozenset([day(2)]))
    assert planned(eps_known=at("valid_from", 5)).output == Part("price_date", frozenset(), day(5))
    assert planned(splits=Changes(frozenset([()]))).full
    assert not planned(prices=Changes(), eps_known=Changes(), splits=Changes()).has_work


def test_undated_changes_rebuild_everything() -> None:
    unknown = planned(eps_known=Changes(is_unbounded=True, reason="its files are gone"))
    undated = planned(prices=at("event_date", 1), eps_known=Changes(frozenset([(("valid_from", None),)])))

    assert (unknown.full, unknown.reason) == (True, "eps_known: its files are gone")
    assert undated.full
    assert undated.input_of("prices") == Part("event_date", None)


def test_the_dedupe_window_widens_events_but_not_intervals() -> None:
    plan = planned(DedupeSpec(within_days=1), prices=at("event_date", 2), eps_known=at("valid_from", 5))

    assert plan.output == Part("price_date", frozenset([day(1), day(2), day(3)]), day(5))


def test_requested_dates_read_the_dates_they_need() -> None:
    plan = dated_plan(PRICED, frozenset([day(4)]))

    assert (plan.output, plan.input_of("prices")) == (
        Part("price_date", frozenset([day(4)])),
        Part("event_date", frozenset([day(4)])),
    )
    assert plan.input_of("eps_known").values is None


Facts = dict[tuple[str, int], int]
FACTS = st.dictionaries(st.tuples(st.sampled_from("AB"), st.integers(0, 12)), st.integers(1, 4), max_size=6)
PRICES = st.sets(st.tuples(st.sampled_from("AB"), st.integers(0, 14)), max_size=8)


def intervals(facts: Facts) -> set[tuple[str, int, int | None, int]]:
    """Returns the intervals of each company."""
    rows = set()
    for company in "AB":
        days = sorted(number for name, number in facts if name == company)
        for start, end in zip(days, [*days[1:], None], strict=False):
            rows.add((company, start, end, facts[company, start]))
    return rows


def answer(prices: set[tuple[str, int]], facts: Facts) -> dict[int, set[Any]]:
    """Returns each price with the value known at its time and its interval, by date."""
    rows: dict[int, set[Any]] = {}
    for company, date in prices:
        known = [row for row in intervals(facts) if row[0] == company and row[1] <= date < (row[2] or 99)]
        rows.setdefault(date, set()).add((company, *known))
    return rows


@given(prices=st.tuples(PRICES, PRICES), facts=st.tuples(FACTS, FACTS))
@example(prices=({("A", 5)}, {("A", 5)}), facts=({("A", 1): 1}, {("A", 1): 1, ("A", 3): 2}))
def test_dates_that_are_not_rebuilt_match_a_full_rebuild(
    prices: tuple[set[tuple[str, int]], set[tuple[str, int]]], facts: tuple[Facts, Facts]
) -> None:
    differing = sorted(start for _, start, _, _ in intervals(facts[0]) ^ intervals(facts[1]))
    plan = planned(
        prices=at("event_date", *{date for _, date in prices[0] ^ prices[1]}),
        eps_known=at("valid_from", *differing[:1]),
    )
    before, after = answer(prices[0], facts[0]), answer(prices[1], facts[1])

    for date in range(15):
        if not plan.output.contains(day(date)):
            assert before.get(date) == after.get(date), date
        else:
            assert plan.input_of("prices").contains(day(date))


@given(
    st.lists(
        st.builds(
            lambda dates, since: Part("d", None if dates is None else frozenset(map(day, dates)), since),
            st.none() | st.sets(st.integers(0, 9), max_size=3),
            st.none() | st.integers(0, 9).map(day),
        ),
        min_size=2,
        max_size=2,
    ),
    st.integers(0, 2),
)
def test_part_operations_match_sets_of_dates(parts: list[Part], days: int) -> None:
    one, other = parts
    every = [day(number) for number in range(-3, 30)]

    def dates(part: Part) -> set[dt.date]:
        return {date for date in every if part.contains(date)}

    assert dates(one.union(other)) == dates(one) | dates(other)
    assert not one.covers(other) or dates(other) <= dates(one)
    around = {date + dt.timedelta(days=shift) for date in dates(one) for shift in range(-days, days + 1)}
    assert dates(one.widen_days(days)) == around & {*every}
