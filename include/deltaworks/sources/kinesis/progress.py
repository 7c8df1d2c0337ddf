"""Where the last batch left every shard: what the next one starts from, and what is reported of lag."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from deltaworks.sources.kinesis.positions import BEFORE_ALL, Offset, Position, iso, later
from deltaworks.sources.kinesis.shares import ShareEnd
from deltaworks.sources.kinesis.state import QueryState

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The end of a batch.

    Attributes:
        live: shards to go on with, and where.
        done: shards read to their end, with their `since`.
        closed_now: those of them that ended in this batch.
        hungry: shards in which a limit ended the batch, so that more is there for sure.
        ends: the records, by shard.
    """

    live: Mapping[str, Position]
    done: Mapping[str, datetime | None]
    closed_now: frozenset[str] = frozenset()
    hungry: frozenset[str] = frozenset()
    ends: Mapping[str, ShareEnd] = field(default_factory=dict)

    def seen_at(self, tips: Mapping[str, datetime]) -> dict[str, Position]:
        """The live positions, their `since` moved on to when they were last seen at the tip."""
        return {
            shard: replace(position, since=later(position.since, tips.get(shard)))
            for shard, position in self.live.items()
        }


def reached(state: QueryState, offset: Offset) -> Reached:
    """Where the batch ended. A shard that no task read is sealed: it ends where it started, for good."""
    if offset.batch == BEFORE_ALL:
        return Reached(live=offset.shards, done=offset.done)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda item: _end_or_seal(state, offset, *item), offset.shards.items())
        ends = dict(zip(offset.shards, found, strict=True))
    closed = {shard: end.end.since for shard, end in ends.items() if end.closed}
    return Reached(
        live={shard: end.end for shard, end in ends.items() if not end.closed},
        done={**offset.done, **closed},
        closed_now=frozenset(closed),
        hungry=frozenset(shard for shard, end in ends.items() if end.more and not end.closed),
        ends=ends,
    )


def _end_or_seal(state: QueryState, offset: Offset, shard: str, start: Position) -> ShareEnd:
    found = state.end(offset.run, offset.batch, shard)
    if found is not None:
        return found
    reader = f"sealed by {socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    return state.fix_end_of(offset.run, offset.batch, shard, ShareEnd(start=start, end=start, reader=reader))


def lag_report(at: Reached, tips: Mapping[str, datetime], *, batch: int, gaps: int) -> dict[str, Any]:
    """What a progress shows: for each shard how far it was behind its newest record when it was last read.

    How many records that is Kinesis does not tell. A shard that was never read has no entry.
    """
    behind = {shard: end.behind_ms for shard, end in at.ends.items() if end.behind_ms is not None and shard in at.live}
    behind |= {shard: 0 for shard in tips if shard in at.live and shard not in at.hungry}
    since = {shard: iso(position.since) for shard, position in at.seen_at(tips).items() if position.since is not None}
    return {
        "batch": batch,
        "millis_behind_latest": {shard: behind[shard] for shard in sorted(behind)},
        "read_until": {shard: since[shard] for shard in sorted(since)},
        "gaps": gaps,
    }
