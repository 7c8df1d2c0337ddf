"""An API-Gateway request as the record that goes into the stream."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from collector.stamp import stamped

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

    def entry(self) -> dict[str, Any]:
        """As PutRecords takes it."""
        return {"Data": self.data, "PartitionKey": self.partition_key}


def outgoing(request: Mapping[str, Any], *, at: int, keys: random.Random) -> OutgoingRecord:
    """The record of a request that holds one event, stamped with the server's time.

    A body that is no JSON object goes on as it is: the lake keeps it in quarantine, where it is seen; a producer that
    is turned away would only send it again.

    Args:
        at: epoch seconds.
    """
    body = request.get("body")
    with_time = stamped(body, at) if isinstance(body, str) else None
    if with_time is not None:
        request = {**request, "body": with_time}
    return OutgoingRecord(_encoded(request), str(keys.randint(1, PARTITION_KEYS)))


def _encoded(request: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(request)
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(request, separators=(",", ":")).encode()
