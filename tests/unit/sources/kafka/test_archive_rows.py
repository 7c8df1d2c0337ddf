"""Kafka records as archive rows: metadata and positions, for any content."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.events.archive import ARCHIVE_SCHEMA, archive_rows
from deltaworks.events.chunks import BatchMetadata
from deltaworks.sources.kafka.offsets import PARTITION_BITS, kafka_archive_columns, partition_seq

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
