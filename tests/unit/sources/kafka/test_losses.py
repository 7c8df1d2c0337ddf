"""The offsets of a batch that count as lost, from the ranges tasks read and the offsets brokers retain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sources.kafka.offsets import MAX_RUNS, ReadOffsets, find_gaps, lost_records, merge_runs
from deltaworks.sources.records import record_seq

OFFSETS = st.sets(st.integers(0, 60))


def batch(rows: Iterable[tuple[str, int, int]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def seen(*batches: list[tuple[str, int, int]]) -> list[Any]:
    noted = ReadOffsets()
    passed = list(noted.track([batch(rows) for rows in batches if rows]))
    assert sum(each.num_rows for each in passed) == sum(len(rows) for rows in batches)
    return noted.ranges()


def lost(told: list[Any], *, start: dict[str, Any], end: dict[str, Any], earliest: dict[Any, int]) -> list[list[int]]:
    found = lost_records(("a", "b"), told, start=start, end=end, earliest=earliest)
    return [each for payload in found for each in (payload.record or {})["ranges"]]


@given(read=OFFSETS, begin=st.integers(0, 60), length=st.integers(0, 60), earliest=st.integers(0, 120))
def test_lost_offsets_are_unread_and_no_longer_retained(read: set[int], begin: int, length: int, earliest: int) -> None:
    told = seen([("a", 0, offset) for offset in sorted(read)])
    end = begin + length
    expected = {offset for offset in range(begin, min(end, earliest)) if offset not in read}

    ranges = lost(told, start={"a": {"0": begin}}, end={"a": {"0": end}}, earliest={("a", 0): earliest})

    assert sorted(offset for first, last in ranges for offset in range(first, last + 1)) == sorted(expected)


@given(shares=st.lists(OFFSETS, max_size=4))
def test_ranges_of_several_tasks_are_merged(shares: list[set[int]]) -> None:
    told = [each for share in shares for each in seen([("a", 0, offset) for offset in sorted(share)])]
    everything = set().union(*shares)
    runs = [run for _, _, found in told for run in found]

    assert {offset for first, last in merge_runs(runs) for offset in range(first, last + 1)} == everything
    assert find_gaps(runs, 0, 61) == find_gaps([(offset, offset) for offset in everything], 0, 61)


def test_partitions_and_topics_of_one_batch_are_distinguished() -> None:
    rows = [("a", 0, 5), ("a", 0, 6), ("a", 1, 7), ("b", 1, 8), ("b", 1, 9), ("a", 0, 7)]

    assert seen(rows, [("a", 0, 9)]) == [["a", 0, [(5, 7), (9, 9)]], ["a", 1, [(7, 7)]], ["b", 1, [(8, 9)]]]


def test_a_gap_in_the_middle_is_lost_and_gaps_that_brokers_retain_are_not() -> None:
    told = seen([("a", 0, offset) for offset in (10, 11, 20, 21, 23)])
    places = {"start": {"a": {"0": 10}}, "end": {"a": {"0": 25}}}

    assert lost(told, **places, earliest={("a", 0): 20}) == [[12, 19]]
    assert lost(told, **places, earliest={("a", 0): 10}) == [], "a marker or a compacted record is no loss"


def test_a_new_partition_is_expected_from_its_first_record() -> None:
    told = seen([("b", 2, 6)])

    (payload,) = lost_records(("a", "b"), told, start={"a": {}}, end={"b": {"2": 7}}, earliest={("b", 2): 6})

    assert (payload.key, payload.seq) == ("b/2/0-5", record_seq(1 << 13 | 2, 0))
    assert payload.problem is not None
    assert payload.problem.detail.endswith("expired before they were read: at most 6 records")


def test_the_runs_of_a_task_are_bounded_and_keep_the_widest_gaps() -> None:
    markers = [offset for offset in range(0, 40 * MAX_RUNS, 2) if not 5_001 <= offset < 6_001]
    ((_, _, runs),) = seen(*([("a", 0, offset) for offset in markers[at : at + 500]] for at in range(0, 8_000, 500)))

    assert len(runs) <= 2 * MAX_RUNS
    assert (5_001, 6_001) in find_gaps(runs, 0, 40 * MAX_RUNS - 1)
