"""The state of a query in object storage: its start, the plans of batches, the end of each shard range, and gaps.

Objects that decide something are created by put-if-absent, so concurrent drivers, tasks and attempts agree on the
first. Objects of one query below its stateLocation:

    query.json                          the query: run id, stream, initial offset
    <run>/<batch>/plan.json             the batch's offset
    <run>/<batch>/<shard>.json          the batch's end in a shard (`ShardRangeEnd`)
    <run>/caught_up.json                times up to which idle shards have no further records
    gaps/<run>/<batch>/<shard>.json     records that may be lost; never deleted
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
from deltaworks.sources.kinesis.positions import (
    INITIAL_BATCH,
    Gap,
    Offset,
    Position,
    ShardRange,
    ShardRangeEnd,
    iso,
    latest_time,
)
from deltaworks.sources.outages import retry_outages

_THREADS = 8
T = TypeVar("T")
_RETRY_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Where the query started, and in which stream. A recreated stream has another `stream_created`."""

    begin: Offset
    stream_arn: str
    stream_created: datetime

    def to_bytes(self) -> bytes:
        """Serializes the record for the state."""
        plain = {
            "begin": self.begin.to_json(),
            "stream_arn": self.stream_arn,
            "stream_created": iso(self.stream_created),
        }
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """Creates the record from the output of `to_bytes`."""
        plain = json.loads(data)
        created = parse_iso(plain["stream_created"])
        if created is None:
            raise ValueError("a query needs stream_created")
        return cls(begin=Offset.from_json(plain["begin"]), stream_arn=plain["stream_arn"], stream_created=created)


class QueryState:
    """Reads and writes the state of one query. Thread-safe. Every call retries storage outages."""

    def __init__(self, objects: ObjectStore, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._objects = objects
        self._retry_seconds = retry_seconds

    def query(self) -> Query | None:
        """Returns where the query started; None if it never started."""
        data = self._get("query.json")
        return None if data is None else Query.from_bytes(data)

    def begin_query(self, query: Query) -> Query:
        """Records where the query starts unless that is recorded; returns the stored record."""
        return Query.from_bytes(self._put_if_absent("query.json", query.to_bytes()))

    def plan(self, run: str, batch: int) -> Offset | None:
        """Returns the planned offset of a batch; None if it was not planned."""
        data = self._get(f"{_folder(run, batch)}/plan.json")
        return None if data is None else Offset.from_json(json.loads(data))

    def record_plan(self, offset: Offset) -> Offset:
        """Records the plan of a batch unless it exists; returns the stored one."""
        key = f"{_folder(offset.run, offset.batch)}/plan.json"
        return Offset.from_json(json.loads(self._put_if_absent(key, json.dumps(offset.to_json()).encode())))

    def latest_plan(self, run: str) -> int | None:
        """Returns the number of the last planned batch; None if there is none."""
        keys = self._retry(lambda: self._objects.list(f"{run}/"))
        planned = [int(key.split("/")[1]) for key in keys if key.endswith("/plan.json")]
        return max(planned, default=None)

    def shard_range_end(self, run: str, batch: int, shard_id: str) -> ShardRangeEnd | None:
        """Returns the batch's end in a shard; None if it is not recorded."""
        data = self._get(f"{_folder(run, batch)}/{shard_id}.json")
        return None if data is None else ShardRangeEnd.from_bytes(data)

    def record_shard_range_end(self, shard_range: ShardRange, end: ShardRangeEnd) -> ShardRangeEnd:
        """Records the end of a shard range unless it is recorded; returns the stored end."""
        return self.record_end(shard_range.run, shard_range.batch, shard_range.shard_id, end)

    def record_end(self, run: str, batch: int, shard_id: str, end: ShardRangeEnd) -> ShardRangeEnd:
        """Records the batch's end in a shard unless it is recorded; returns the stored end."""
        return ShardRangeEnd.from_bytes(self._put_if_absent(f"{_folder(run, batch)}/{shard_id}.json", end.to_bytes()))

    def add_gap(self, run: str, gap: Gap) -> None:
        """Stores a gap permanently. Idempotent."""
        self._put_if_absent(f"gaps/{run}/{gap.batch:012d}/{gap.shard_id}.json", json.dumps(gap.to_json()).encode())

    def gaps(self, offset: Offset | None = None) -> list[Gap]:
        """Returns all gaps, oldest first, or those of one batch."""
        prefix = "gaps/" if offset is None else f"gaps/{offset.run}/{offset.batch:012d}/"
        keys = self._retry(lambda: self._objects.list(prefix))
        records = (self._get(key) for key in keys)
        return [Gap.from_json(json.loads(data)) for data in records if data is not None]

    def caught_up_times(self, run: str, batch: int) -> dict[str, datetime]:
        """Returns the saved times, per shard, up to which all records are known to be read; empty if saved for another
        batch.
        """
        data = self._get(f"{run}/caught_up.json")
        plain = {} if data is None else json.loads(data)
        if plain.get("batch") != batch:
            return {}
        times = {shard: parse_iso(text) for shard, text in plain["shards"].items()}
        return {shard: instant for shard, instant in times.items() if instant is not None}

    def save_caught_up_times(self, run: str, batch: int, caught_up_times: Mapping[str, datetime]) -> None:
        """Saves the caught-up times of idle shards for a batch. Replaces the previous ones."""
        plain = {"batch": batch, "shards": {shard: iso(caught_up_times[shard]) for shard in sorted(caught_up_times)}}
        self._retry(lambda: self._objects.put(f"{run}/caught_up.json", json.dumps(plain).encode()))

    def delete_batches(self, run: str, *, before: int, all_older: bool = False) -> int:
        """Deletes the objects of batch `before - 1`, or of all batches below `before`; returns their number."""
        prefix = f"{run}/" if all_older else f"{_folder(run, before - 1)}/"
        keys = self._objects.list(prefix) if before > 0 else []
        old = [key for key in keys if key.count("/") == 2 and int(key.split("/")[1]) < before]
        # The plan is deleted first: a batch without a plan is rejected, one without ends would be read again.
        for key in sorted(old, key=lambda path: not path.endswith("/plan.json")):
            self._objects.delete(key)
        return len(old)

    def _get(self, key: str) -> bytes | None:
        stored = self._retry(lambda: self._objects.get(key))
        return None if stored is None else stored.data

    def _put_if_absent(self, key: str, data: bytes) -> bytes:
        if self._retry(lambda: self._objects.put_if_absent(key, data)):
            return data
        first = self._get(key)
        if first is None:
            raise ContractError("KINESIS_STATE_VANISHED", f"{key} was deleted from the query's state.")
        return first

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_outages(call, retry_seconds=self._retry_seconds)


def _folder(run: str, batch: int) -> str:
    return f"{run}/{batch:012d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """The end of a batch over all its shards.

    Attributes:
        live: shards to continue, with their positions.
        finished: finished shards, with their `since`.
        newly_closed: shards that finished in this batch.
        limited: shards in which a limit ended the batch, so more records are available.
        ends: the stored ends, by shard.
    """

    live: Mapping[str, Position]
    finished: Mapping[str, datetime | None]
    newly_closed: frozenset[str] = frozenset()
    truncated_shards: frozenset[str] = frozenset()
    ends: Mapping[str, ShardRangeEnd] = field(default_factory=dict)

    def positions_since(self, caught_up_times: Mapping[str, datetime]) -> dict[str, Position]:
        """Returns the positions of live shards. Their `since` advances to the caught-up time of the shard, if that is
        later.
        """
        return {
            shard: replace(position, since=latest_time(position.since, caught_up_times.get(shard)))
            for shard, position in self.live.items()
        }


def end_of_batch(state: QueryState, offset: Offset) -> BatchEnd:
    """Returns the end of a batch. For a shard that no task has read, stores an end that equals its start."""
    if offset.batch == INITIAL_BATCH:
        return BatchEnd(live=offset.shards, finished=offset.finished)
    with ThreadPoolExecutor(_THREADS) as pool:
        records = pool.map(lambda item: _end_or_seal(state, offset, *item), offset.shards.items())
        ends = dict(zip(offset.shards, records, strict=True))
    closed = {shard: end.end.since for shard, end in ends.items() if end.closed}
    return BatchEnd(
        live={shard: end.end for shard, end in ends.items() if not end.closed},
        finished={**offset.finished, **closed},
        newly_closed=frozenset(closed),
        truncated_shards=frozenset(shard for shard, end in ends.items() if end.has_more and not end.closed),
        ends=ends,
    )


def _end_or_seal(state: QueryState, offset: Offset, shard: str, start: Position) -> ShardRangeEnd:
    end = state.shard_range_end(offset.run, offset.batch, shard)
    if end is not None:
        return end
    reader = f"sealed by {socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    return state.record_end(offset.run, offset.batch, shard, ShardRangeEnd(start=start, end=start, reader=reader))


def lag_report(at: BatchEnd, caught_up_times: Mapping[str, datetime], *, batch: int, gaps: int) -> dict[str, Any]:
    """Returns the lag of each shard in milliseconds for the query's progress, as of its last read.

    Kinesis does not report a number of records. A shard that was never read is omitted.
    """
    lag_ms = {shard: end.behind_ms for shard, end in at.ends.items() if end.behind_ms is not None and shard in at.live}
    lag_ms |= {shard: 0 for shard in caught_up_times if shard in at.live and shard not in at.truncated_shards}
    since = {
        shard: iso(position.since)
        for shard, position in at.positions_since(caught_up_times).items()
        if position.since is not None
    }
    return {
        "batch": batch,
        "millis_behind_latest": {shard: lag_ms[shard] for shard in sorted(lag_ms)},
        "read_until": {shard: since[shard] for shard in sorted(since)},
        "gaps": gaps,
    }
