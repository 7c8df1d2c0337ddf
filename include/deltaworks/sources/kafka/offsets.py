"""Where records of Kafka lie: topics by their ids, offsets as the `_seq` of rows, and how far apart two positions are.

A topic that is deleted and created again has other records at the same offsets. Its id is fixed by a put-if-absent
object when a generation of the pipeline first sees it. Spark notices a topic that is shorter than what was read; one
that has grown past that again it would read on from the middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError
from deltaworks.sources.records import record_seq

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


def records_between(end: Offsets, latest: Offsets) -> int:
    """How many offsets lie between two positions, markers of transactions among them."""
    return sum(newest - position for _, position, newest in _behind(end, latest))


def unread_offsets(read: Offsets, newest: Offsets) -> dict[TopicPartition, int]:
    """The first offset that is not read, of each partition that has one.

    Args:
        read, newest: the offset after the last that was read, and after the last there is. A partition that `read`
            lacks is new: nothing of it was read.
    """
    return {partition: position for partition, position, _ in _behind(read, newest)}


def _behind(read: Offsets, newest: Offsets) -> Iterator[tuple[TopicPartition, int, int]]:
    for topic, partitions in newest.items():
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
            first = self._first_ids.get(topic) or self._first(topic, now)
            if first != now:
                raise ContractError(
                    "KAFKA_TOPIC_REPLACED",
                    f"{self._pipeline!r} began with the topic {topic} of the id {first}; now its id is {now}: it was "
                    "deleted and made anew, and offsets read so far mean nothing there.",
                    hint=f"Read it from its beginning: `deltaworks pipelines start-over {self._pipeline}`; or name "
                    "the new topic otherwise and add it to `source.topics`.",
                )
            self._first_ids[topic] = first

    def _first(self, topic: str, now: str) -> str:
        generation = self._home.generations.current()
        key = paths.kafka_topic(self._pipeline, generation, topic)
        if self._home.objects.put_if_absent(key, json.dumps({"topic_id": now}).encode()):
            return now
        recorded = self._home.objects.get(key)
        return now if recorded is None else str(json.loads(recorded.data)["topic_id"])
