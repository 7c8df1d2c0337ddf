"""Offsets of Kafka: topics by their ids, `_seq` of rows, the distance of two positions, and records that were lost.

A topic that is deleted and created again has other records at the same offsets. Its id is fixed by a put-if-absent
object when a generation of the pipeline first sees it. Spark notifications a topic that is shorter than what was read; one
that has grown past that again it would read on from the middle.

Spark's source only logs which records retention had removed before they were read. So tasks note which offsets they
have read, and the holes between these count as lost below the first offset that the brokers still have after the
reading. Above it a hole is no loss: markers of transactions, aborted records and what compaction removed have offsets
too. Below it they look like lost records, so a range says how many may be lost at most.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError
from deltaworks.events.parse import Payload
from deltaworks.sources.records import lost_records_payload, record_seq

#: A topic and one of its partitions.
TopicPartition = tuple[str, int]
#: Offsets by topic and partition, as Spark writes them.
Offsets = Mapping[str, Mapping[str, int]]
#: Of the bits that number partitions, those for the partition within its topic.
PARTITION_BITS = 13


def partition_seq(topic: int, partition: int, offset: int) -> int:
    """The `_seq` of a record; `topic` is its topic's place in the declaration.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED.
    """
    if partition >= 1 << PARTITION_BITS:
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Partition {partition} has no place in a 64-bit `_seq`.",
            hint=f"Topics have at most {1 << PARTITION_BITS} partitions here.",
        )
    return record_seq(topic << PARTITION_BITS | partition, offset)


def count_offsets_between(end: Offsets, latest: Offsets) -> int:
    """How many offsets lie between two positions, markers of transactions among them."""
    return sum(newest - position for _, position, newest in _unread_positions(end, latest))


def unread_offsets(read: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """The first offset that is not read, of each partition that has one.

    Args:
        read, newest: the offset after the last that was read, and after the last there is. A partition that `read`
            lacks is new: nothing of it was read.
    """
    return {partition: position for partition, position, _ in _unread_positions(read, latest)}


def _unread_positions(read: Offsets, latest: Offsets) -> Iterator[tuple[TopicPartition, int, int]]:
    for topic, partitions in latest.items():
        for partition, end in partitions.items():
            position = read.get(topic, {}).get(partition, 0)
            if position < end:
                yield (topic, int(partition)), position, end


class TopicIds:
    """The ids of a pipeline's topics in its current generation. For one run, in one thread."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._pipeline = home.pipeline
        self._first_ids: dict[str, str] = {}

    def check(self, ids: Mapping[str, str]) -> None:
        """Compare the ids that topics have now with those they had first. A new topic is recorded.

        Raises:
            ContractError: KAFKA_TOPIC_REPLACED.
        """
        for topic, now in ids.items():
            first = self._first_ids.get(topic) or self._recorded_id(topic, now)
            if first != now:
                raise ContractError(
                    "KAFKA_TOPIC_REPLACED",
                    f"{self._pipeline!r} began with the topic {topic} of the id {first}; now its id is {now}: it was "
                    "deleted and recreated, and offsets read so far mean nothing there.",
                    hint=f"Read it from its beginning: `deltaworks pipelines start-over {self._pipeline}`; or name "
                    "the new topic otherwise and add it to `source.topics`.",
                )
            self._first_ids[topic] = first

    def _recorded_id(self, topic: str, now: str) -> str:
        generation = self._home.generations.current()
        key = paths.kafka_topic(self._pipeline, generation, topic)
        if self._home.objects.put_if_absent(key, json.dumps({"topic_id": now}).encode()):
            return now
        recorded = self._home.objects.get(key)
        return now if recorded is None else str(json.loads(recorded.data)["topic_id"])


#: First and last offset of records that follow each other.
OffsetRun = tuple[int, int]
#: Runs a task remembers of a partition. Beyond them the narrowest holes are forgotten: what expired is wide.
MAX_RUNS = 200
_MAX_RANGE_EXAMPLES = 20


class ReadOffsets:
    """The offsets a task reads."""

    def __init__(self) -> None:
        self._runs: dict[TopicPartition, list[OffsetRun]] = {}

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, noted on their way."""
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
        """`[topic, partition, runs]` of each partition."""
        return [[*partition, merge_runs(runs, max_runs=MAX_RUNS)] for partition, runs in self._runs.items()]


def merge_runs(runs: Iterable[Sequence[int]], *, max_runs: int | None = None) -> list[OffsetRun]:
    """Runs in order, those that touch made one; where there are more than `most`, the narrowest holes are closed."""
    merged: list[OffsetRun] = []
    for first, last in sorted((run[0], run[1]) for run in runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    if max_runs is None or len(merged) <= max_runs:
        return merged
    widths = sorted((after[0] - before[1] for before, after in pairwise(merged)), reverse=True)
    # Of holes that are equally wide none is better than the other: all of them are closed.
    narrowest_kept = widths[max_runs - 1] + 1
    kept = [merged[0]]
    for run in merged[1:]:
        if run[0] - kept[-1][1] >= narrowest_kept:
            kept.append(run)
        else:
            kept[-1] = (kept[-1][0], run[1])
    return kept


def find_gaps(runs: Iterable[Sequence[int]], begin: int, end: int) -> list[OffsetRun]:
    """What lies from `begin` up to `end`, which is not part of it, and in none of the runs."""
    gaps, at = [], begin
    for first, last in merge_runs(runs):
        if first >= end:
            break
        if first > at:
            gaps.append((at, first - 1))
        at = max(at, last + 1)
    return [*gaps, (at, end - 1)] if at < end else gaps


def lost_records(
    topics: Sequence[str],
    read_ranges: Iterable[Sequence[Any]],
    *,
    start: Offsets,
    end: Offsets,
    earliest: Mapping[TopicPartition, int],
) -> list[Payload]:
    """A payload for each partition of which records were removed unread.

    Args:
        seen: the ranges of all tasks; see `OffsetsSeen.ranges`.
        start, end: the batch; a partition that `start` lacks is new and read from 0.
        earliest: by topic and partition what the brokers still had after the batch was read.
    """
    runs: dict[TopicPartition, list[Any]] = {}
    for topic, partition, read in read_ranges:
        runs.setdefault((topic, int(partition)), []).extend(read)
    lost = []
    for topic, partitions in end.items():
        for partition, last in partitions.items():
            key = (topic, int(partition))
            bound = min(last, earliest.get(key, 0))
            gone = find_gaps(runs.get(key, ()), start.get(topic, {}).get(partition, 0), bound)
            if gone:
                lost.append(_lost_payload(topics.index(topic), *key, gone))
    return lost


def _lost_payload(number: int, topic: str, partition: int, gone: Sequence[OffsetRun]) -> Payload:
    first, last = gone[0][0], gone[-1][1]
    count = sum(end - begin + 1 for begin, end in gone)
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
            "ranges": [list(run) for run in gone[:_MAX_RANGE_EXAMPLES]],
        },
    )
