"""Where reading stands: positions in shards, the offset Spark keeps for a batch, and the share of a shard in a batch.

An offset names a batch and the positions it STARTS at. Where it ends is only known once tasks have read it, and is
recorded beside it, a `ShareEnd` for each shard (`state`); the next offset starts there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deltaworks.control.clock import parse_iso

#: The batch of an offset that no batch has: a query's beginning.
INITIAL_BATCH = -1


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


def latest_time(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two times of which either may be unknown."""
    if one is None or other is None:
        return one or other
    return max(one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """When a share ends before the shard's tip. At least one record is read; records are never divided."""

    rows: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a task is to read: everything it needs travels in it. With a `consumer`, an ARN, it is pushed."""

    run: str
    batch: int
    shard_id: str
    start: Position
    limits: ShareLimits
    until: datetime | None
    retention_seconds: float
    consumer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records that may be lost: they were older than the stream's retention before they were read.

    Attributes:
        after, since: the position that is no longer there, as in `Position`.
        first, first_arrival: the oldest record that was there instead; None where there was none.
        shard_gone: the whole shard was no longer there.
    """

    shard_id: str
    batch: int
    after: str | None
    since: datetime | None
    first: str | None
    first_arrival: datetime | None
    noticed_at: datetime
    shard_gone: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the state keeps it."""
        return {
            "shard_id": self.shard_id,
            "batch": self.batch,
            "after": self.after,
            "since": _optional_iso(self.since),
            "first": self.first,
            "first_arrival": _optional_iso(self.first_arrival),
            "noticed_at": _optional_iso(self.noticed_at),
            "shard_gone": self.shard_gone,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Gap:
        """The reverse of `to_json`."""
        times = {name: parse_iso(plain[name]) for name in ("since", "first_arrival")}
        noticed_at = parse_iso(plain["noticed_at"])
        if noticed_at is None:
            raise ValueError("a gap says when it was noticed")
        return cls(**{**plain, **times, "noticed_at": noticed_at})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareEnd:
    """The record that fixes a share: written once, before any row of it is handed over.

    Attributes:
        records, rows: what lies between start and end; an aggregated record gives several rows.
        digest: of the records, see `Rows.digest`.
        closed: the end is the shard's own.
        more: a limit ended the share, so that more was there to read.
        behind_ms: how far the end was from the shard's newest record; None where nobody read.
        read_at: the server's time then.
        reader: host, process and a number of its own: who wrote this record.
    """

    start: Position
    end: Position
    records: int = 0
    rows: int = 0
    digest: str = ""
    closed: bool = False
    more: bool = False
    behind_ms: int | None = None
    read_at: datetime | None = None
    gap: Gap | None = None
    reader: str = ""

    def to_bytes(self) -> bytes:
        """As the state keeps it."""
        return json.dumps(
            {
                "start": self.start.to_json(),
                "end": self.end.to_json(),
                "records": self.records,
                "rows": self.rows,
                "digest": self.digest,
                "closed": self.closed,
                "more": self.more,
                "behind_ms": self.behind_ms,
                "read_at": _optional_iso(self.read_at),
                "gap": self.gap.to_json() if self.gap else None,
                "reader": self.reader,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ShareEnd:
        """The reverse of `to_bytes`."""
        plain = json.loads(data)
        plain["start"], plain["end"] = Position.from_json(plain["start"]), Position.from_json(plain["end"])
        plain["read_at"] = parse_iso(plain["read_at"])
        plain["gap"] = Gap.from_json(plain["gap"]) if plain["gap"] else None
        return cls(**plain)


def _optional_iso(instant: datetime | None) -> str | None:
    return None if instant is None else iso(instant)
