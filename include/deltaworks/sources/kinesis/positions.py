"""Where reading stands: a position for each shard, and the offset Spark keeps for a batch.

An offset names a batch and the positions it STARTS at. Where it ends is only known once tasks have read it, and is
recorded beside it (`state`); the next offset starts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deltaworks.control.clock import parse_iso

#: The batch of an offset that no batch has: a query's beginning.
BEFORE_ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a shard. Without `after` and `at` it is the shard's oldest record.

    Attributes:
        after: sequence number of the last record handed over.
        at: where none was handed over: records that arrived at this time or later.
        rows: rows handed over of this shard since the query's beginning; the next row's ordinal.
        since: all records that arrived before this time are handed over or not asked for. Below the stream's
            retention, a record that is not there any more is no loss.
    """

    after: str | None = None
    at: datetime | None = None
    rows: int = 0
    since: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """As offsets and records hold it."""
        plain: dict[str, Any] = {"rows": self.rows}
        if self.after is not None:
            plain["after"] = self.after
        if self.at is not None:
            plain["at"] = iso(self.at)
        if self.since is not None:
            plain["since"] = iso(self.since)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Position:
        """The reverse of `to_json`."""
        return cls(
            after=plain.get("after"),
            at=parse_iso(plain.get("at")),
            rows=int(plain["rows"]),
            since=parse_iso(plain.get("since")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A batch: where each of its shards starts, which shards are read to their end, and up to when it may read.

    Attributes:
        run: the query, as named in its state.
        batch: counts from 0; `BEFORE_ALL` where the query begins.
        until: records that arrived later are left for another run of `AvailableNow`.
        done: shards that are closed and handed over whole, as long as the stream lists them, with their `since`.
    """

    run: str
    batch: int
    shards: Mapping[str, Position] = field(default_factory=dict)
    done: Mapping[str, datetime | None] = field(default_factory=dict)
    until: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it; equal offsets are equal as text."""
        return {
            "run": self.run,
            "batch": self.batch,
            "until": None if self.until is None else iso(self.until),
            "shards": {shard: self.shards[shard].to_json() for shard in sorted(self.shards)},
            "done": {shard: None if since is None else iso(since) for shard, since in sorted(self.done.items())},
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Offset:
        """The reverse of `to_json`."""
        return cls(
            run=str(plain["run"]),
            batch=int(plain["batch"]),
            shards={shard: Position.from_json(position) for shard, position in plain["shards"].items()},
            done={shard: parse_iso(since) for shard, since in plain["done"].items()},
            until=parse_iso(plain.get("until")),
        )


def iso(instant: datetime) -> str:
    """A time as offsets and records hold it, with all its digits."""
    return instant.isoformat(timespec="microseconds")


def later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two times of which either may be unknown."""
    if one is None or other is None:
        return one or other
    return max(one, other)
