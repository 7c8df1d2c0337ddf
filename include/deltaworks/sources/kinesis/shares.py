"""A share: what one shard contributes to one batch, and the record that fixes where it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.control.clock import parse_iso
from deltaworks.sources.kinesis.positions import Position, iso


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
            "since": _text(self.since),
            "first": self.first,
            "first_arrival": _text(self.first_arrival),
            "noticed_at": _text(self.noticed_at),
            "shard_gone": self.shard_gone,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Gap:
        """The reverse of `to_json`."""
        times = {name: parse_iso(plain[name]) for name in ("since", "first_arrival")}
        noticed_at = parse_iso(plain["noticed_at"])
        assert noticed_at is not None
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
                "read_at": _text(self.read_at),
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


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else iso(instant)
