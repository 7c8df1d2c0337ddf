"""A night plan selects the best benefit within its budget and reports what never fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.maintenance import optimize_night as night_module
from deltaworks.maintenance.optimize_night import Candidate, plan_night
from deltaworks.maintenance.partition_choice import PartitionChoice, TableChoice

#: Benefits and costs: small numbers, so that all selections can be tried.
ITEMS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=9)


def item(number: int, benefit: float, cost: float) -> PartitionChoice:
    return PartitionChoice(
        partition=(("event_date", f"2026-01-{number:02d}"),),
        action="zorder",
        reason="not in order",
        files=2,
        bytes=1,
        files_saved=1,
        bytes_rewritten=1,
        benefit=benefit,
        cost_seconds=cost,
    )


def choices(items: Sequence[tuple[float, float]]) -> list[TableChoice]:
    made = [item(number, *each) for number, each in enumerate(items, 1)]
    return [
        TableChoice(table=name, partitions=tuple(made[at::2]), reason="")
        for at, name in enumerate(("events", "orders"))
    ]


def benefit(taken: Sequence[Candidate]) -> float:
    return sum(each.choice.benefit for each in taken)


def best(items: Sequence[tuple[float, float]], budget: float) -> float:
    """Oracle: tries every selection."""
    selections = itertools.chain.from_iterable(itertools.combinations(items, count) for count in range(len(items) + 1))
    return max(sum(each[0] for each in some) for some in selections if sum(each[1] for each in some) <= budget)


@given(items=ITEMS, budget=st.integers(0, 60))
def test_a_plan_fits_its_budget_and_has_half_of_the_best_benefit(items: list[tuple[int, int]], budget: int) -> None:
    night = plan_night(choices(items), budget_seconds=budget)

    assert night.cost_seconds <= budget
    assert 2 * benefit(night.selected) >= best(items, budget)
    assert sorted(str(each) for each in (*night.selected, *night.deferred)) == sorted(
        str(Candidate(choice.table, each)) for choice in choices(items) for each in choice.partitions
    )


@given(items=ITEMS)
def test_everything_that_fits_is_selected_best_first(items: list[tuple[int, int]]) -> None:
    night = plan_night(choices(items), budget_seconds=sum(cost for _, cost in items))

    assert benefit(night.selected) == sum(each[0] for each in items)
    assert not night.deferred
    worths = [each.benefit_per_second for each in night.selected]
    assert worths == sorted(worths, reverse=True)


def test_a_single_large_partition_replaces_a_small_selection() -> None:
    items = [(3.0, 1.0), (100.0, 60.0)]
    ranked = [Candidate(choice.table, each) for choice in choices(items) for each in choice.partitions]

    assert benefit(night_module._fit_budget(sorted(ranked, key=lambda each: -each.benefit_per_second), 60)) == 3.0
    assert benefit(plan_night(choices(items), budget_seconds=60).selected) == 100.0


def test_partitions_beyond_a_full_night_are_reported() -> None:
    night = plan_night(choices([(10, 5), (10, 70)]), budget_seconds=20, night_seconds=60)

    assert [each.choice.cost_seconds for each in night.deferred] == [70]
    assert night.too_large == night.deferred
    assert plan_night(choices([(10, 50)]), budget_seconds=20, night_seconds=60).too_large == ()


def test_tables_come_in_the_order_of_their_best_partition() -> None:
    night = plan_night(choices([(1, 1), (9, 1), (5, 1)]), budget_seconds=60)

    assert night.tables() == ["orders", "events"]
    assert [each.benefit for each in night.selected_partitions("events")] == [5, 1]
