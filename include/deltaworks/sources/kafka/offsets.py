"""Kafka offsets: checks topic ids, computes `_seq` and the backlog, and finds lost records.

A recreated topic has other records at the same offsets. Therefore a topic's id is recorded (by put-if-absent) when a
generation of the pipeline first reads it. Spark detects a topic that is shorter than the read position, but would
continue in the middle of a recreated topic that has grown past it.

Spark's source only logs which records expired before they were read. So tasks record the offsets they read. A gap below
the first offset that the brokers retain after the read counts as lost. Above that offset a gap is no loss, because
transaction markers, aborted records and compacted records have offsets too. Below it they look like lost records, so
the number of lost records is an upper bound.

Archived records keep topic, partition and offset, so a row of the archive table converts back to a record of Spark's
connector.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Payload
from deltaworks.sources.records import ORDINAL_BITS, lost_records_payload, record_seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A topic and one of its partition numbers.
TopicPartition = tuple[str, int]
#: Offsets by topic and partition, as Spark writes them.
Offsets = Mapping[str, Mapping[str, int]]
#: Number of bits for the partition within its topic. The other bits for partition numbers hold the topic.
PARTITION_BITS = 13


def partition_seq(topic: int, partition: int, offset: int) -> int:
    """Returns the `_seq` of a record. `topic` is the topic's index in the spec.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED.
    """
    if partition >= 1 << PARTITION_BITS:
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Partition {partition} does not fit into a 64-bit `_seq`.",
            hint=f"A topic may have at most {1 << PARTITION_BITS} partitions.",
        )
    return record_seq(topic << PARTITION_BITS | partition, offset)


def count_offsets_between(end: Offsets, latest: Offsets) -> int:
    """Returns the number of offsets between two positions, including transaction markers."""
    return sum(stop - position for _, position, stop in _unread_positions(end, latest))


def unread_offsets(read: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Returns the first unread offset of each partition that has unread records.

    Args:
        read, latest: the offsets after the last record read, and after the last available record. A partition missing
            in `read` is new and unread.
    """
    return {partition: position for partition, position, _ in _unread_positions(read, latest)}


def _unread_positions(read: Offsets, latest: Offsets) -> Iterator[tuple[TopicPartition, int, int]]:
    for topic, partitions in latest.items():
        for partition, end in partitions.items():
            position = read.get(topic, {}).get(partition, 0)
            if position < end:
                yield (topic, int(partition)), position, end


class TopicIds:
    """Recorded topic ids of a pipeline's current generation. Used in one run and one thread."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._pipeline = home.pipeline
        self._first_ids: dict[str, str] = {}

    def check(self, ids: Mapping[str, str]) -> None:
        """Compares the current topic ids with the recorded ones. Records the ids of new topics.

        Raises:
            ContractError: KAFKA_TOPIC_REPLACED.
        """
        for topic, current_id in ids.items():
            first = self._first_ids.get(topic) or self._recorded_id(topic, current_id)
            if first != current_id:
                raise ContractError(
                    "KAFKA_TOPIC_REPLACED",
                    f"Topic {topic} of {self._pipeline!r} was deleted and recreated: its id was {first}, now it is "
                    f"{current_id}. The offsets read so far are invalid.",
                    hint=(
                        f"Read it from the beginning with `deltaworks pipelines start-over {self._pipeline}`, or "
                        "give the new topic another name and add it to `source.topics`."
                    ),
                )
            self._first_ids[topic] = first

    def _recorded_id(self, topic: str, current_id: str) -> str:
        generation = self._home.generations.current()
        key = paths.kafka_topic(self._pipeline, generation, topic)
        if self._home.objects.put_if_absent(key, json.dumps({"topic_id": current_id}).encode()):
            return current_id
        recorded = self._home.objects.get(key)
        return current_id if recorded is None else str(json.loads(recorded.data)["topic_id"])


#: First and last offset of consecutive records.
OffsetRun = tuple[int, int]
#: Maximum number of runs that a task records per partition. Beyond it the narrowest gaps are closed, since expired
#: ranges are wide.
MAX_RUNS = 200
_MAX_RANGE_EXAMPLES = 20


class ReadOffsets:
    """Records the offsets that a task reads, as runs of consecutive offsets per partition."""

    def __init__(self) -> None:
        self._runs: dict[TopicPartition, list[OffsetRun]] = {}

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches and records their offsets."""
        for batch in batches:
            if batch.num_rows:
                self._record(batch)
            yield batch

    def _record(self, batch: pa.RecordBatch) -> None:
        offsets, partitions = (batch.column(name).to_numpy() for name in ("offset", "partition"))
        topics = batch.column("topic").dictionary_encode()
        numbers = topics.indices.to_numpy()
        ends = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(partitions) != 0) | (np.diff(numbers) != 0))
        for first, last in pairwise([-1, *ends.tolist(), batch.num_rows - 1]):
            partition = (topics.dictionary[int(numbers[last])].as_py(), int(partitions[last]))
            runs = self._runs.setdefault(partition, [])
            runs.append((int(offsets[first + 1]), int(offsets[last])))
            if len(runs) > 2 * MAX_RUNS:
                self._runs[partition] = merge_runs(runs, max_runs=MAX_RUNS)

    def ranges(self) -> list[Any]:
        """Returns `[topic, partition, runs]` per partition."""
        return [[*partition, merge_runs(runs, max_runs=MAX_RUNS)] for partition, runs in self._runs.items()]


def merge_runs(runs: Iterable[Sequence[int]], *, max_runs: int | None = None) -> list[OffsetRun]:
    """Merges adjacent runs and returns them in order. With more than `max_runs`, also closes the narrowest gaps."""
    merged: list[OffsetRun] = []
    for first, last in sorted((run[0], run[1]) for run in runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    if max_runs is None or len(merged) <= max_runs:
        return merged
    widths = sorted((after[0] - before[1] for before, after in pairwise(merged)), reverse=True)
    # All gaps of this width are closed, so that the result does not depend on their order.
    min_kept_width = widths[max_runs - 1] + 1
    merged_runs = [merged[0]]
    for run in merged[1:]:
        if run[0] - merged_runs[-1][1] >= min_kept_width:
            merged_runs.append(run)
        else:
            merged_runs[-1] = (merged_runs[-1][0], run[1])
    return merged_runs


def find_gaps(runs: Iterable[Sequence[int]], begin: int, end: int) -> list[OffsetRun]:
    """Returns the ranges of offsets from `begin` (inclusive) to `end` (exclusive) that no run covers."""
    gap_runs, position = [], begin
    for first, last in merge_runs(runs):
        if first >= end:
            break
        if first > position:
            gap_runs.append((position, first - 1))
        position = max(position, last + 1)
    return [*gap_runs, (position, end - 1)] if position < end else gap_runs


def lost_records(
    topics: Sequence[str],
    read_ranges: Iterable[Sequence[Any]],
    *,
    start: Offsets,
    end: Offsets,
    earliest: Mapping[TopicPartition, int],
) -> list[Payload]:
    """Returns a payload for each partition in which records expired before they were read.

    Args:
        read_ranges: the ranges of all tasks; see `ReadOffsets.ranges`.
        start, end: offsets of the batch; a partition missing in `start` is new and read from 0.
        earliest: by topic and partition, the first offset the brokers retained after the batch was read.
    """
    runs: dict[TopicPartition, list[Any]] = {}
    for topic, partition, read in read_ranges:
        runs.setdefault((topic, int(partition)), []).extend(read)
    payloads = []
    for topic, partitions in end.items():
        for partition, last in partitions.items():
            key = (topic, int(partition))
            bound = min(last, earliest.get(key, 0))
            gaps = find_gaps(runs.get(key, ()), start.get(topic, {}).get(partition, 0), bound)
            if gaps:
                payloads.append(_lost_payload(topics.index(topic), *key, gaps))
    return payloads


def _lost_payload(number: int, topic: str, partition: int, gaps: Sequence[OffsetRun]) -> Payload:
    first, last = gaps[0][0], gaps[-1][1]
    count = sum(end - begin + 1 for begin, end in gaps)
    return lost_records_payload(
        partition_seq(number, partition, first),
        f"{topic}/{partition}/{first}-{last}",
        f"offsets {first} to {last} of {topic}-{partition} expired before they were read: at most {count} records",
        record={
            "topic": topic,
            "partition": partition,
            "first_offset": first,
            "last_offset": last,
            "records_at_most": count,
            "ranges": [list(run) for run in gaps[:_MAX_RANGE_EXAMPLES]],
        },
        records=count,
    )


def kafka_archive_columns(topics: Sequence[str], batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the archive table's columns for an Arrow batch of Kafka records.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED.
    """
    offsets, partitions = batch.column("offset"), batch.column("partition")
    return {
        "stream": batch.column("topic"),
        "partition": partitions.cast(pa.string()),
        "position": offsets.cast(pa.string()),
        "arrived_at_us": batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()),
        "_seq": _seqs(topics, batch.column("topic"), partitions.to_numpy(), offsets.to_numpy()),
        "record_key": batch.column("key"),
        "headers": batch.column("headers"),
        "value": batch.column("value"),
    }


def _seqs(topics: Sequence[str], names: pa.Array, partitions: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Returns the `partition_seq` of each record."""
    encoded = names.dictionary_encode()
    topic_indexes = np.array([topics.index(name) for name in encoded.dictionary.to_pylist()], np.int64)
    topic_numbers = topic_indexes[encoded.indices.to_numpy()]
    if len(offsets):
        # A number out of range would equal that of another record.
        partition_seq(int(topic_numbers.max()), int(partitions.max()), int(offsets.max()))
    return pa.array((topic_numbers << PARTITION_BITS | partitions.astype(np.int64)) << ORDINAL_BITS | offsets)


def kafka_columns(rows: DataFrame) -> DataFrame:
    """Converts rows of the archive table to the columns of Spark's Kafka connector."""
    from pyspark.sql import functions as F

    return rows.select(
        F.col("stream").alias("topic"),
        F.col("partition").cast("int").alias("partition"),
        F.col("position").cast("long").alias("offset"),
        F.timestamp_micros("arrived_at_us").alias("timestamp"),
        F.col("value"),
        F.col("record_key").alias("key"),
        F.col("headers"),
    )
