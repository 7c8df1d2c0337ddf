"""Records for a Kinesis stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Number of different partition keys. Random keys spread events evenly, and no player's events depend on one shard.
PARTITION_KEYS = 100


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record and the partition key that selects its shard."""

    data: bytes
    partition_key: str

    @property
    def size_bytes(self) -> int:
        """Bytes of data and key, as the stream's limits count them."""
        return len(self.data) + len(self.partition_key)

    def request_entry(self) -> dict[str, Any]:
        """Returns the record as an entry of a PutRecords request."""
        return {"Data": self.data, "PartitionKey": self.partition_key}
