"""Where a record of Kafka lies, as the `_seq` of its rows, and how far apart two positions are."""

from __future__ import annotations

from collections.abc import Mapping

from deltaworks.errors import ContractError
from deltaworks.sources.record_seq import record_seq

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


def records_between(end: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> int:
    """How many offsets lie between two positions, markers of transactions among them."""
    return sum(
        max(0, newest - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, newest in partitions.items()
    )
