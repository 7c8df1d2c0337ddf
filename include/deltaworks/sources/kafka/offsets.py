"""Where a record of Kafka lies, as the `_seq` of its rows, and how far apart two positions are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltaworks.errors import ContractError
from deltaworks.sources.record_seq import record_seq

#: A topic and one of its partitions.
Place = tuple[str, int]
#: Offsets by topic and partition, as Spark tells them.
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


def waiting_places(read: Offsets, newest: Offsets) -> dict[Place, int]:
    """By topic and partition the first offset that is not read, of those where one is.

    Args:
        read, newest: the offset after the last that was read, and after the last there is. A partition that `read`
            lacks is new: nothing of it was read.
    """
    return {place: position for place, position, _ in _behind(read, newest)}


def _behind(read: Offsets, newest: Offsets) -> Iterator[tuple[Place, int, int]]:
    for topic, partitions in newest.items():
        for partition, end in partitions.items():
            position = read.get(topic, {}).get(partition, 0)
            if position < end:
                yield (topic, int(partition)), position, end
