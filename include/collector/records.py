"""A record on its way into a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Partition keys are numbers from 1 to this: events spread evenly, and none of a player's is tied to a shard.
PARTITION_KEYS = 100


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """One record and the key that chooses its shard."""

    data: bytes
    partition_key: str

    @property
    def size_bytes(self) -> int:
        """What it counts for against the stream's limits."""
        return len(self.data) + len(self.partition_key)

    def request_entry(self) -> dict[str, Any]:
        """As PutRecords takes it."""
        return {"Data": self.data, "PartitionKey": self.partition_key}
