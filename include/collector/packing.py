"""Packs events into the objects that land, as a Firehose delivery stream forms them: JSON lines, gzip, no time inside.

The same events give the same lines wherever they are packed, so that a crash between the plan and the put ends in the
same object. Compressed bytes are not what identifies it: another zlib packs others.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

#: Fast enough to keep up with any sender; level 6 takes 2.3 times the CPU for 9 % fewer bytes.
GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """One event as it was spooled: its number, and the JSON that lands, without an end of line."""

    seq: int
    payload: bytes


class ObjectPlan(BaseModel):
    """What one object holds: every event of a source from `first` to `last`, under `key` and no other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int
    last: int
    key: str


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object, ready to be put. `crc` is that of the lines before they are compressed."""

    plan: ObjectPlan
    events: int
    crc: int
    body: bytes

    @property
    def metadata(self) -> dict[str, str]:
        """What says, of an object that is there already, whether it is this one."""
        return {"first": str(self.plan.first), "last": str(self.plan.last), "crc": f"{self.crc:08x}"}


def plan_object(prefix: str, *, collector: str, first: int, last: int, at: datetime) -> ObjectPlan:
    """The plan of an object: its key names the hour, the collector and the numbers of its first and last event."""
    hour = at.astimezone(UTC).strftime("%Y/%m/%d/%H")
    return ObjectPlan(first=first, last=last, key=f"{prefix}{hour}/{collector}-{first:012d}-{last:012d}.json.gz")


def with_checksum_key(plan: ObjectPlan, crc: int) -> ObjectPlan:
    """The plan for events whose key holds an object of others: with the checksum of its lines in the key."""
    return plan.model_copy(update={"key": plan.key.removesuffix(".json.gz") + f"-{crc:08x}.json.gz"})


def pack(plan: ObjectPlan, events: Sequence[SpooledEvent]) -> PackedObject:
    """The object of a plan.

    Args:
        events: all events of the source from `plan.first` to `plan.last`, in order.
    """
    lines = b"".join([line for event in events for line in (event.payload, b"\n")])
    body = gzip.compress(lines, GZIP_LEVEL, mtime=0)
    return PackedObject(plan, len(events), zlib.crc32(lines), body)


def lines_checksum(body: bytes) -> int:
    """The checksum of the lines in an object.

    Raises:
        OSError, EOFError, zlib.error: it is no gzip.
    """
    return zlib.crc32(gzip.decompress(body))
