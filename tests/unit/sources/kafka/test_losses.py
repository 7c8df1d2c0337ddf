"""Kafka's offsets and archive rows: lost records, the oldest unread one, topic ids, and positions of any content."""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.generations import StartOver
from deltaworks.errors import ContractError
from deltaworks.events.archive import ARCHIVE_SCHEMA, archive_rows
from deltaworks.events.chunks import BatchMetadata
from deltaworks.sources.kafka.brokers import oldest_unread_ms
from deltaworks.sources.kafka.offsets import (
    MAX_RUNS,
    PARTITION_BITS,
    ReadOffsets,
    TopicIds,
    TopicPartition,
    find_gaps,
    kafka_archive_columns,
    lost_records,
    merge_runs,
    partition_seq,
    unread_offsets,
)
from deltaworks.sources.records import record_seq
from deltaworks.testing import present
from tests.records import record_of

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


def first_id(objects: LocalObjects, pipeline: str) -> str:
    """The id a pipeline is held to, as the refusal of any other says it."""
    with pytest.raises(ContractError, match="KAFKA_TOPIC_REPLACED") as replaced:
        TopicIds(PipelineHome(objects, pipeline)).check({"orders": "another"})
    return present(re.search(r"its id was (\w+),", replaced.value.message))[1]


def test_recorded_topic_ids_also_apply_to_the_next_run(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})

    after = TopicIds(PipelineHome(objects, "shop"))
    after.check({"orders": "one", "refunds": "two"})
    with pytest.raises(ContractError, match=r"orders .* its id was one, now it is three") as replaced:
        after.check({"orders": "three", "refunds": "two"})

    assert replaced.value.condition == "KAFKA_TOPIC_REPLACED"


def test_a_new_generation_records_its_own_topic_ids(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})
    begun = record_of(
        StartOver, pipeline="shop", generation=2, first_batch=5, start=None, reason="the topic was recreated"
    )
    PipelineHome(objects, "shop").generations.begin_generation(begun)

    TopicIds(PipelineHome(objects, "shop")).check({"orders": "two"})

    assert first_id(objects, "shop") == "two"


def test_another_pipeline_has_ids_of_its_own(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})

    TopicIds(PipelineHome(objects, "stock")).check({"orders": "two"})

    assert (first_id(objects, "shop"), first_id(objects, "stock")) == ("one", "two")


NOW = 10_000
Times = dict[TopicPartition, list[int]]
#: The times of the records of some partitions, in order of offsets.
times = st.dictionaries(
    st.tuples(st.just("orders"), st.integers(0, 3)), st.lists(st.integers(0, NOW), max_size=20).map(sorted), max_size=4
)


def first_since_of(records: Times, asked: list[int]):  # type: ignore[no-untyped-def]
    def first_since(since_ms: int) -> dict[TopicPartition, int]:
        asked.append(since_ms)
        return {place: bisect_left(at, since_ms) for place, at in records.items() if at and at[-1] >= since_ms}

    return first_since


@given(records=times, data=st.data(), earliest=st.integers(0, NOW), precision=st.integers(1, 500))
def test_the_result_is_the_time_of_the_oldest_unread_record(
    records: Times, data: st.DataObject, earliest: int, precision: int
) -> None:
    read = {place: data.draw(st.integers(0, len(at))) for place, at in records.items()}
    asked: list[int] = []

    found = oldest_unread_ms(
        {place: read[place] for place, at in records.items() if read[place] < len(at)},
        first_since_of(records, asked),
        earliest_ms=earliest,
        now_ms=NOW,
        precision_ms=precision,
    )

    unread = [at[read[place]] for place, at in records.items() if read[place] < len(at)]
    if not unread:
        assert found is None
    elif min(unread) < earliest:
        assert found == earliest
    else:
        assert found is not None
        assert found <= min(unread) <= found + precision
    assert len(asked) <= 15


def test_unread_offsets_are_those_after_the_last_read_record() -> None:
    read = {"orders": {"0": 5, "1": 7}}
    newest = {"orders": {"0": 5, "1": 9, "2": 1}, "clicks": {"0": 0}}

    assert unread_offsets(read, newest) == {("orders", 1): 7, ("orders", 2): 0}


AT_US = 1_767_225_600_000_000
STAMP = BatchMetadata(7, AT_US, "spec")
TOPICS = ("orders", "refunds")
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def records(*places: tuple[str, int, int], micros: int = 0, value: bytes | None = b"x") -> pa.RecordBatch:
    count = len(places)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic for topic, _, _ in places], pa.string()),
            "partition": pa.array([partition for _, partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, _, offset in places], pa.int64()),
            "timestamp": pa.array([micros] * count, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array([value] * count, pa.binary()),
            "key": pa.array([b"\xff"] * count, pa.binary()),
            "headers": pa.array([[{"key": "a", "value": b"\x00"}]] * count, pa.list_(HEADER)),
        }
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(TOPICS), st.integers(0, (1 << PARTITION_BITS) - 1), st.integers(0, (1 << 44) - 1)),
        min_size=1,
    )
)
def test_an_archive_row_has_the_position_and_seq_of_its_record(places: list[tuple[str, int, int]]) -> None:
    rows = archive_rows(kafka_archive_columns(TOPICS, records(*places)), STAMP)

    assert rows.schema == ARCHIVE_SCHEMA
    assert rows.column("_seq").to_pylist() == [
        partition_seq(TOPICS.index(topic), partition, offset) for topic, partition, offset in places
    ]
    listed = zip(*(rows.column(name).to_pylist() for name in ("stream", "partition", "position")), strict=True)
    assert list(listed) == [(topic, str(partition), str(offset)) for topic, partition, offset in places]
    assert set(rows.column("archive_date").to_pylist()) == {dt.date(2026, 1, 1)}
    assert set(rows.column("_batch_id").to_pylist()) == {7}


@pytest.mark.parametrize("micros", [-1_000, 0, AT_US, 1_700_000_000_000_000_000])
def test_a_time_out_of_range_is_preserved(micros: int) -> None:
    rows = archive_rows(kafka_archive_columns(TOPICS, records(("orders", 0, 1), micros=micros, value=None)), STAMP)

    assert rows.to_pylist()[0]["arrived_at_us"] == micros
    assert rows.to_pylist()[0]["value"] is None
    assert rows.to_pylist()[0]["headers"] == [{"key": "a", "value": b"\x00"}]


def test_a_partition_number_without_a_seq_is_rejected() -> None:
    with pytest.raises(ContractError, match="RECORD_SEQ_EXHAUSTED"):
        kafka_archive_columns(TOPICS, records(("orders", 1 << PARTITION_BITS, 1)))
