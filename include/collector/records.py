"""An API-Gateway request as the record that goes into the stream."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

#: Partition keys are numbers from 1 to this: events spread evenly, and none of a player's is tied to a shard.
PARTITION_KEYS = 100


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """One record and the key that chooses its shard."""

    data: bytes
    partition_key: str

    def entry(self) -> dict[str, Any]:
        """As PutRecords takes it."""
        return {"Data": self.data, "PartitionKey": self.partition_key}


def outgoing(request: Mapping[str, Any], *, at: int, keys: random.Random) -> OutgoingRecord:
    """The record of a request, its event stamped with the server's time.

    A body that is no JSON object goes on as it is: the lake keeps it in quarantine, where it is seen; a producer that
    is turned away would only send it again.

    Args:
        at: epoch seconds.
    """
    body = request.get("body")
    try:
        event = orjson.loads(body) if isinstance(body, str | bytes) else None
    except orjson.JSONDecodeError:
        event = None
    if isinstance(event, dict):
        request = {**request, "body": orjson.dumps({**event, "eventTime": at}).decode()}
    return OutgoingRecord(orjson.dumps(request), str(keys.randint(1, PARTITION_KEYS)))
