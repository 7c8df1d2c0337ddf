"""Seq ranges hold exactly the selected numbers, also as SQL and Arrow conditions."""

from __future__ import annotations

import itertools
from itertools import pairwise

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.recovery.reprocess.selection import SeqRanges

SEQS = st.sets(st.integers(1, 60))


@given(SEQS)
def test_ranges_hold_the_seqs_given_and_nothing_else(wanted: set[int]) -> None:
    ranges = SeqRanges.from_seqs(wanted)

    assert {seq for seq in range(70) if seq in ranges} == wanted
    assert {seq for first, last in ranges for seq in range(first, last + 1)} == wanted


@given(SEQS, SEQS)
def test_ranges_run_over_numbers_that_have_no_rows_and_over_no_others(wanted: set[int], others: set[int]) -> None:
    among = sorted(wanted | others)

    ranges = SeqRanges.from_seqs(wanted, existing_seqs=among)

    assert {seq for seq in among if seq in ranges} == wanted
    # As few as can be: between two ranges lies something that is not wanted.
    ends = list(ranges)
    for (_, last), (first, _) in itertools.pairwise(ends):
        assert any(last < seq < first for seq in among)


@given(SEQS)
def test_conditions_find_the_same_rows(wanted: set[int]) -> None:
    ranges = SeqRanges.from_seqs(wanted)
    rows = pa.table({"_seq": list(range(70))})

    by_arrow = ds.dataset(rows).to_table(filter=ranges.expression()).column("_seq").to_pylist()
    by_sql = duckdb.sql(f"SELECT _seq FROM rows WHERE {ranges.sql().replace('`', chr(34))} ORDER BY 1").fetchall()

    assert by_arrow == sorted(wanted)
    assert [row[0] for row in by_sql] == sorted(wanted)


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda span: (span[0], span[0] + span[1])))


@given(SPANS, st.integers(0, 40), st.integers(0, 20))
def test_joined_ranges_hold_what_their_parts_hold_and_are_cut_where_they_are_looked_at(
    pairs: list[tuple[int, int]], first: int, length: int
) -> None:
    held = {seq for low, high in pairs for seq in range(low, high + 1)}

    ranges = SeqRanges.merge(pairs)

    assert {seq for low, high in ranges for seq in range(low, high + 1)} == held
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges)), "apart from each other"
    cut = {seq for low, high in ranges.clip(first, first + length) for seq in range(low, high + 1)}
    assert cut == {seq for seq in held if first <= seq <= first + length}
