"""The time of Kafka's oldest unread record, found by requesting offsets for times."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sources.kafka.brokers import oldest_unread_ms
from deltaworks.sources.kafka.offsets import TopicPartition, unread_offsets

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
