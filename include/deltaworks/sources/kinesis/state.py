"""What a query keeps beside the stream: how it began, its batches' plans, where each share of them ends, its gaps.

Every object that decides something is put if absent, so that drivers, tasks and attempts that race agree on the
first one. Objects of one query, by key below its stateLocation:

    query.json                          the query: its run, the stream it reads, where it began
    <run>/<batch>/plan.json             the batch's offset
    <run>/<batch>/<shard>.json          where the batch ends in a shard (`ShareEnd`)
    <run>/tips.json                     until when idle shards are known to have held nothing more
    gaps/<run>/<batch>/<shard>.json     records that may be lost; kept for good
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.positions import INITIAL_BATCH, Gap, Offset, Position, Share, ShareEnd, iso, latest_time
from deltaworks.sources.outages import retry_outages

_THREADS = 8
T = TypeVar("T")
_RETRY_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """How a query began. A later stream of the same name has another `stream_created`."""

    begin: Offset
    stream_arn: str
    stream_created: datetime

    def to_bytes(self) -> bytes:
        """As the state keeps it."""
        plain = {
            "begin": self.begin.to_json(),
            "stream_arn": self.stream_arn,
            "stream_created": iso(self.stream_created),
        }
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """The reverse of `to_bytes`."""
        plain = json.loads(data)
        created = parse_iso(plain["stream_created"])
        if created is None:
            raise ValueError("a query says when its stream was created")
        return cls(begin=Offset.from_json(plain["begin"]), stream_arn=plain["stream_arn"], stream_created=created)


class QueryState:
    """The state of a query. Safe to share between threads; every call waits for a storage that is away."""

    def __init__(self, objects: ObjectStore, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._objects = objects
        self._retry_seconds = retry_seconds

    def query(self) -> Query | None:
        """How the query began; None when it never did."""
        data = self._get("query.json")
        return None if data is None else Query.from_bytes(data)

    def begin_query(self, query: Query) -> Query:
        """Begin, unless another driver did: whoever was first counts."""
        return Query.from_bytes(self._put_first("query.json", query.to_bytes()))

    def plan(self, run: str, batch: int) -> Offset | None:
        """The batch's offset; None when it was never planned."""
        data = self._get(f"{_folder(run, batch)}/plan.json")
        return None if data is None else Offset.from_json(json.loads(data))

    def record_plan(self, offset: Offset) -> Offset:
        """Plan a batch, unless another driver did: whoever was first counts."""
        key = f"{_folder(offset.run, offset.batch)}/plan.json"
        return Offset.from_json(json.loads(self._put_first(key, json.dumps(offset.to_json()).encode())))

    def latest_plan(self, run: str) -> int | None:
        """The highest batch planned."""
        keys = self._retry(lambda: self._objects.list(f"{run}/"))
        planned = [int(key.split("/")[1]) for key in keys if key.endswith("/plan.json")]
        return max(planned, default=None)

    def share_end(self, run: str, batch: int, shard_id: str) -> ShareEnd | None:
        """Where the batch ends in a shard; None while that is open."""
        data = self._get(f"{_folder(run, batch)}/{shard_id}.json")
        return None if data is None else ShareEnd.from_bytes(data)

    def record_share_end(self, share: Share, end: ShareEnd) -> ShareEnd:
        """Fix where the share ends, unless that is done: the record that counts from now on."""
        return self.record_end(share.run, share.batch, share.shard_id, end)

    def record_end(self, run: str, batch: int, shard_id: str, end: ShareEnd) -> ShareEnd:
        """Like `fix_end`, where there is no share at hand."""
        return ShareEnd.from_bytes(self._put_first(f"{_folder(run, batch)}/{shard_id}.json", end.to_bytes()))

    def add_gap(self, run: str, gap: Gap) -> None:
        """Keep a gap for good. Adding it again changes nothing."""
        self._put_first(f"gaps/{run}/{gap.batch:012d}/{gap.shard_id}.json", json.dumps(gap.to_json()).encode())

    def gaps(self, offset: Offset | None = None) -> list[Gap]:
        """All gaps, the oldest first; or those of one batch."""
        prefix = "gaps/" if offset is None else f"gaps/{offset.run}/{offset.batch:012d}/"
        keys = self._retry(lambda: self._objects.list(prefix))
        records = (self._get(key) for key in keys)
        return [Gap.from_json(json.loads(data)) for data in records if data is not None]

    def tips(self, run: str, batch: int) -> dict[str, datetime]:
        """Times until which shards are known to have held nothing behind the end of `batch`."""
        data = self._get(f"{run}/tips.json")
        plain = {} if data is None else json.loads(data)
        if plain.get("batch") != batch:
            return {}
        times = {shard: parse_iso(text) for shard, text in plain["shards"].items()}
        return {shard: instant for shard, instant in times.items() if instant is not None}

    def save_tips(self, run: str, batch: int, tips: Mapping[str, datetime]) -> None:
        """Keep such times; those noted before are replaced."""
        plain = {"batch": batch, "shards": {shard: iso(tips[shard]) for shard in sorted(tips)}}
        self._retry(lambda: self._objects.put(f"{run}/tips.json", json.dumps(plain).encode()))

    def delete_batches(self, run: str, *, before: int, all_older: bool = False) -> int:
        """Remove the objects of batch `before - 1`, or of all batches below `before`; how many were removed."""
        prefix = f"{run}/" if all_older else f"{_folder(run, before - 1)}/"
        keys = self._objects.list(prefix) if before > 0 else []
        old = [key for key in keys if key.count("/") == 2 and int(key.split("/")[1]) < before]
        # The plan goes first: a batch whose plan is gone is refused, one whose ends are gone would be read again.
        for key in sorted(old, key=lambda path: not path.endswith("/plan.json")):
            self._objects.delete(key)
        return len(old)

    def _get(self, key: str) -> bytes | None:
        stored = self._retry(lambda: self._objects.get(key))
        return None if stored is None else stored.data

    def _put_first(self, key: str, data: bytes) -> bytes:
        if self._retry(lambda: self._objects.put_if_absent(key, data)):
            return data
        first = self._get(key)
        if first is None:
            raise ContractError(
                "KINESIS_STATE_VANISHED",
                f"{key} of the query's state was there and is not any more.",
                hint="Something deletes below stateLocation: exempt it from lifecycle rules, then run again.",
            )
        return first

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_outages(call, retry_seconds=self._retry_seconds)


def _folder(run: str, batch: int) -> str:
    return f"{run}/{batch:012d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """The end of a batch.

    Attributes:
        live: shards to continue with, and where.
        done: shards read to their end, with their `since`.
        closed_now: those of them that ended in this batch.
        hungry: shards in which a limit ended the batch, so that more is there for sure.
        ends: the records, by shard.
    """

    live: Mapping[str, Position]
    done: Mapping[str, datetime | None]
    newly_closed: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()
    ends: Mapping[str, ShareEnd] = field(default_factory=dict)

    def positions_since(self, tips: Mapping[str, datetime]) -> dict[str, Position]:
        """The live positions, their `since` moved on to when they were last seen at the tip."""
        return {
            shard: replace(position, since=latest_time(position.since, tips.get(shard)))
            for shard, position in self.live.items()
        }


def end_of_batch(state: QueryState, offset: Offset) -> BatchEnd:
    """Where the batch ended. A shard that no task read is sealed: it ends where it started, for good."""
    if offset.batch == INITIAL_BATCH:
        return BatchEnd(live=offset.shards, done=offset.done)
    with ThreadPoolExecutor(_THREADS) as pool:
        records = pool.map(lambda item: _end_or_seal(state, offset, *item), offset.shards.items())
        ends = dict(zip(offset.shards, records, strict=True))
    closed = {shard: end.end.since for shard, end in ends.items() if end.closed}
    return BatchEnd(
        live={shard: end.end for shard, end in ends.items() if not end.closed},
        done={**offset.done, **closed},
        newly_closed=frozenset(closed),
        limited=frozenset(shard for shard, end in ends.items() if end.more and not end.closed),
        ends=ends,
    )


def _end_or_seal(state: QueryState, offset: Offset, shard: str, start: Position) -> ShareEnd:
    end = state.share_end(offset.run, offset.batch, shard)
    if end is not None:
        return end
    reader = f"sealed by {socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    return state.record_end(offset.run, offset.batch, shard, ShareEnd(start=start, end=start, reader=reader))


def lag_report(at: BatchEnd, tips: Mapping[str, datetime], *, batch: int, gaps: int) -> dict[str, Any]:
    """What a progress shows: for each shard how far it was behind its newest record when it was last read.

    How many records that is Kinesis does not tell. A shard that was never read has no entry.
    """
    behind = {shard: end.behind_ms for shard, end in at.ends.items() if end.behind_ms is not None and shard in at.live}
    behind |= {shard: 0 for shard in tips if shard in at.live and shard not in at.limited}
    since = {
        shard: iso(position.since) for shard, position in at.positions_since(tips).items() if position.since is not None
    }
    return {
        "batch": batch,
        "millis_behind_latest": {shard: behind[shard] for shard in sorted(behind)},
        "read_until": {shard: since[shard] for shard in sorted(since)},
        "gaps": gaps,
    }
