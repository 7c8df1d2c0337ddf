"""A record to be put into a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Partition keys are numbers from 1 to this, so events spread evenly and no player is bound to a shard.
PARTITION_KEYS = 100


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """One record and the partition key that selects its shard."""

    data: bytes
    partition_key: str

    @property
    def size_bytes(self) -> int:
        """The size that counts against the stream's limits."""
        return len(self.data) + len(self.partition_key)

    def request_entry(self) -> dict[str, Any]:
        """Returns the entry for PutRecords."""
        return {"Data": self.data, "PartitionKey": self.partition_key}
