"""The dry run of a reprocess: exact for small inputs, and otherwise a range that holds the true number."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.operations.reprocess import _rows_in_cell
from deltaworks.recovery.reprocess.dry_run import TableCount, _table_count, estimate_rows


@given(
    rates=st.lists(st.floats(0.0, 5.0), min_size=40, max_size=200),
    seed=st.integers(0, 10_000),
)
def test_a_range_is_ordered_and_not_below_what_was_read(rates: list[float], seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(100, 10_000) for _ in rates]
    rows = [round(rate * size / 100) for rate, size in zip(rates, sizes, strict=True)]
    sample = draw.sample(range(len(rates)), 20)

    low, estimate, high = estimate_rows([rows[n] for n in sample], [sizes[n] for n in sample], sum(sizes))

    assert sum(rows[n] for n in sample) <= max(low, estimate)
    assert 0 <= low <= max(estimate, low) <= max(high, low)


def test_most_ranges_hold_the_true_number() -> None:
    draw, held, rounds = random.Random(7), 0, 300
    for _ in range(rounds):
        sizes = [draw.randint(1_000, 20_000) for _ in range(150)]
        rows = [round(size / 100 * draw.uniform(0.2, 1.8)) for size in sizes]
        sample = [at * 150 // 20 for at in range(20)]
        low, _, high = estimate_rows([rows[n] for n in sample], [sizes[n] for n in sample], sum(sizes))
        held += low <= sum(rows) <= high

    assert held / rounds >= 0.9


def test_equal_objects_have_an_exact_estimate() -> None:
    assert estimate_rows([50] * 20, [1_000] * 20, 141_000) == (7_050, 7_050, 7_050)


def test_few_sampled_rows_give_no_number() -> None:
    rare = _table_count("purchase", 39, [0] * 19 + [4], sizes=[1_000] * 20, total=141_000)
    common = _table_count("session_end", 1_298, [9, 11] * 10, sizes=[1_000] * 20, total=141_000)
    exact = _table_count("purchase", 39, [39], sizes=(), total=141_000)

    assert (rare.rows_in, str(_rows_in_cell(rare, is_sampled=True))) == (None, "too few in the sample")
    assert common.rows_in == 1_410
    assert str(_rows_in_cell(common, is_sampled=True)).startswith("≈ 1,")
    assert str(_rows_in_cell(exact, is_sampled=True)) == "39"
    not_read = TableCount(table="events", rows_out=3, rows_in=None)
    assert str(_rows_in_cell(not_read, is_sampled=False)) == "?"
