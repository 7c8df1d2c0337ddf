"""Sequence numbers of dropped events as compact ranges, compared with a set."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.events import collector_sequence_numbers
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers

PROCESSES = ("0123456789abcdef" * 2, "f" * 32)
NUMBERS = st.lists(st.tuples(st.sampled_from(PROCESSES), st.integers(0, 60)), max_size=80)


def members(numbers: CollectorSequenceNumbers) -> set[tuple[str, int]]:
    return {
        (process, seq)
        for process, ranges in numbers.ranges().items()
        for first, last in ranges.tolist()
        for seq in range(first, last + 1)
    }


@given(NUMBERS, NUMBERS, st.integers(1, 9))
def test_ranges_are_disjoint_and_sorted_and_equal_the_added_set(
    some: list[tuple[str, int]], others: list[tuple[str, int]], at_once: int
) -> None:
    one, other = CollectorSequenceNumbers(), CollectorSequenceNumbers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector_sequence_numbers, "_MAX_PENDING", at_once)
        for process, seq in some:
            one.add(process, seq)
        for process, seq in others:
            other.add_event({"_collector": {"collector": process, "seq": seq}})
    one.merge(CollectorSequenceNumbers().add_encoded(other.encode()))

    assert members(one) == {*some, *others}
    assert bool(one) == bool(some or others)
    for ranges in one.ranges().values():
        assert all(later[0] > before[1] + 1 for before, later in pairwise(ranges))


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(2, 5))
def test_beyond_the_limit_the_closest_ranges_are_joined(numbers: set[int], most: int) -> None:
    noted = CollectorSequenceNumbers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector_sequence_numbers, "MAX_RANGES", most)
        for seq in numbers:
            noted.add(PROCESSES[0], seq)
        kept = members(noted)
        ranges = noted.ranges()[PROCESSES[0]]
    assert {seq for _, seq in kept} >= numbers
    assert len(ranges) <= most
    if len(kept) > len(numbers):
        assert len(ranges) == most, "what is between is given up only where it has to be"


def test_every_tenth_of_300_000_numbers_takes_less_than_40_kilobytes() -> None:
    rng, noted = Random(1), CollectorSequenceNumbers()
    for seq in range(300_000):
        if rng.random() < 0.1:
            noted.add(PROCESSES[0], seq)
    assert len(noted.encode()[PROCESSES[0]]) < 40_000


def test_invalid_sequence_numbers_are_ignored() -> None:
    noted = CollectorSequenceNumbers()
    for process, seq in (("x" * 32, 1), (None, 1), (PROCESSES[0], True), (PROCESSES[0], -1), (PROCESSES[0], 2**63)):
        noted.add(process, seq)
    noted.add_event({"_collector": "text"})
    for number in range(collector_sequence_numbers.MAX_PROCESSES + 9):
        noted.add(f"{number:032x}", 1)
    assert len(noted.ranges()) == collector_sequence_numbers.MAX_PROCESSES


def test_an_unreadable_record_raises() -> None:
    with pytest.raises(ContractError, match="COLLECTOR_RECORD_UNREADABLE"):
        CollectorSequenceNumbers().add_encoded({PROCESSES[0]: "no numbers"})
