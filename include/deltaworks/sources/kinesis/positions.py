"""Positions in shards, offsets of batches, and shard ranges: the part of one shard that one batch reads.

An offset names a batch and the positions at which it STARTS. Its end is known only after tasks have read it, so the end
is stored separately, as a `ShardRangeEnd` per shard (`state`). The next offset starts there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deltaworks.control.clock import parse_iso

#: The batch number of a query's initial offset.
INITIAL_BATCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in a shard. Without `after` and `at` it is before the shard's oldest record.

    Attributes:
        after: sequence number of the last delivered record.
        at: if no record was delivered, the arrival time to start from.
        rows: rows of this shard delivered since the query began; the next row's ordinal.
        since: all records that arrived before this time were delivered or are not requested. If it is within the
            stream's
            retention, a missing record is no loss.
    """

    after: str | None = None
    at: datetime | None = None
    rows: int = 0
    since: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the position as stored in offsets and records."""
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
        """Creates a position from the output of `to_json`."""
        return cls(
            after=plain.get("after"),
            at=parse_iso(plain.get("at")),
            rows=int(plain["rows"]),
            since=parse_iso(plain.get("since")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The offset of a batch: its start in each shard, the finished shards, and the time limit of `AvailableNow`.

    Attributes:
        run: the query's id in its state.
        batch: number from 0; `INITIAL_BATCH` for the query's start.
        until: records that arrived later are left for the next `AvailableNow` run.
        finished: closed and completely delivered shards that the stream still lists, with their `since`.
    """

    run: str
    batch: int
    shards: Mapping[str, Position] = field(default_factory=dict)
    finished: Mapping[str, datetime | None] = field(default_factory=dict)
    until: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the offset as Spark stores it; equal offsets give equal text."""
        return {
            "run": self.run,
            "batch": self.batch,
            "until": None if self.until is None else iso(self.until),
            "shards": {shard: self.shards[shard].to_json() for shard in sorted(self.shards)},
            "finished": {
                shard: None if since is None else iso(since) for shard, since in sorted(self.finished.items())
            },
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Offset:
        """Creates an offset from the output of `to_json`."""
        return cls(
            run=str(plain["run"]),
            batch=int(plain["batch"]),
            shards={shard: Position.from_json(position) for shard, position in plain["shards"].items()},
            finished={shard: parse_iso(since) for shard, since in plain["finished"].items()},
            until=parse_iso(plain.get("until")),
        )


def iso(instant: datetime) -> str:
    """Formats a time as ISO 8601 with microseconds, for offsets and state records."""
    return instant.isoformat(timespec="microseconds")


def latest_time(one: datetime | None, other: datetime | None) -> datetime | None:
    """Returns the later of two times, either of which may be None."""
    if one is None or other is None:
        return one or other
    return max(one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRangeLimits:
    """Limits of a shard range. A range has at least one record, even if that exceeds a limit; records are never
    split."""

    rows: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    """The part of one shard that a task reads for one batch. Contains everything the task needs. With a `consumer` ARN
    it is read by enhanced fan-out.
    """

    run: str
    batch: int
    shard_id: str
    start: Position
    limits: ShardRangeLimits
    until: datetime | None
    retention_seconds: float
    consumer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records that may be lost because they expired before they were read.

    Attributes:
        after, since: the position that no longer exists, as in `Position`.
        first, first_arrival: the oldest retained record; None if there is none.
        is_shard_missing: the shard no longer exists.
    """

    shard_id: str
    batch: int
    after: str | None
    since: datetime | None
    first: str | None
    first_arrival: datetime | None
    detected_at: datetime
    is_shard_missing: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the gap as stored in the state."""
        return {
            "shard_id": self.shard_id,
            "batch": self.batch,
            "after": self.after,
            "since": _optional_iso(self.since),
            "first": self.first,
            "first_arrival": _optional_iso(self.first_arrival),
            "detected_at": _optional_iso(self.detected_at),
            "is_shard_missing": self.is_shard_missing,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Gap:
        """Creates a gap from the output of `to_json`."""
        times = {name: parse_iso(plain[name]) for name in ("since", "first_arrival")}
        detected_at = parse_iso(plain["detected_at"])
        if detected_at is None:
            raise ValueError("a gap needs detected_at")
        return cls(**{**plain, **times, "detected_at": detected_at})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRangeEnd:
    """Where a shard range ends. Written once to the state, before any of the range's rows are delivered.

    Attributes:
        records, rows: counts between start and end; an aggregated record has several rows.
        digest: checksum of the records, see `Rows.digest`.
        closed: the range ends with the shard.
        has_more: a limit ended the range, so more records are available.
        behind_ms: milliseconds from the end to the shard's latest record; None if nothing was read.
        read_at: the server's time of the read.
        reader: host, process and a unique id of the writer of this object.
    """

    start: Position
    end: Position
    records: int = 0
    rows: int = 0
    digest: str = ""
    closed: bool = False
    has_more: bool = False
    behind_ms: int | None = None
    read_at: datetime | None = None
    gap: Gap | None = None
    reader: str = ""

    def to_bytes(self) -> bytes:
        """Serializes the record for the state."""
        return json.dumps(
            {
                "start": self.start.to_json(),
                "end": self.end.to_json(),
                "records": self.records,
                "rows": self.rows,
                "digest": self.digest,
                "closed": self.closed,
                "has_more": self.has_more,
                "behind_ms": self.behind_ms,
                "read_at": _optional_iso(self.read_at),
                "gap": self.gap.to_json() if self.gap else None,
                "reader": self.reader,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardRangeEnd:
        """Creates a shard range's end from the output of `to_bytes`."""
        plain = json.loads(data)
        plain["start"], plain["end"] = Position.from_json(plain["start"]), Position.from_json(plain["end"])
        plain["read_at"] = parse_iso(plain["read_at"])
        plain["gap"] = Gap.from_json(plain["gap"]) if plain["gap"] else None
        return cls(**plain)


def _optional_iso(instant: datetime | None) -> str | None:
    return None if instant is None else iso(instant)
