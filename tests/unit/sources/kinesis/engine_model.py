"""A model of Spark's use of a source, batch by batch: a log of planned batches, actions that read, restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.kinesis.planner import Planner
from deltaworks.sources.kinesis.positions import Offset, ShardRange
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, fetch_first, read_shard_range
from deltaworks.sources.kinesis.state import QueryState
from tests.unit.sources.kinesis.stream_model import MemoryObjects, ModelStream, options


class Killed(Exception):
    """The process ended here."""


class KillingState(QueryState):
    """A state whose user is killed before or after it fixes its next end."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__(objects)
        self.kill: str | None = None

    def record_shard_range_end(self, shard_range: ShardRange, end: Any) -> Any:
        kill, self.kill = self.kill, None
        if kill == "before":
            raise Killed
        fixed = super().record_shard_range_end(shard_range, end)
        if kill == "after":
            raise Killed
        return fixed


_COLUMNS = {
    "shard_id": "shardId",
    "ordinal": "ordinal",
    "sequence_number": "sequenceNumber",
    "partition_key": "partitionKey",
    "data": "data",
}


@dataclass(frozen=True)
class Row:
    """A row as an action gets it."""

    shard_id: str
    ordinal: int
    sequence_number: str
    partition_key: str
    data: bytes


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [
        Row(**{name: row[column] for name, column in _COLUMNS.items()})
        for batch in batches
        for row in batch.to_pylist()
    ]


class Engine:
    """One query: what is planned is in `log`, what is complete in `committed`, and rows that count in `delivered`."""

    def __init__(self, stream: ModelStream, objects: MemoryObjects, options: KinesisOptions) -> None:
        self.stream = stream
        self.objects = objects
        self.options = options
        self.log: list[dict[str, Any]] = []
        self.committed = 0
        self.delivered: list[list[Row]] = []
        self.state = KillingState(objects)
        self.planner = self.new_planner()

    def new_planner(self) -> Planner:
        return Planner(
            self.stream,
            self.state,
            self.options,
            clock=lambda: self.stream.now().timestamp(),
            sleep=lambda seconds: None,
        )

    def restart(self, *, available_now: bool = False) -> None:
        self.planner = self.new_planner()
        if available_now:
            self.planner.prepare_for_available_now()

    @property
    def open_batch(self) -> Offset | None:
        """The batch that is planned and not complete."""
        return Offset.from_json(self.log[-1]) if len(self.log) > self.committed else None

    def start(self) -> Offset:
        """Where the next batch is to start."""
        return Offset.from_json(self.log[-1]) if self.log else self.planner.initial_offset()

    def plan(self) -> bool:
        """A trigger: whether a batch was planned."""
        planned = self.planner.next_batch(self.start())
        if planned is None:
            return False
        # Offsets travel as text.
        self.log.append(json.loads(json.dumps(planned.to_json())))
        if self.committed:
            self.planner.commit(Offset.from_json(self.log[self.committed - 1]))
        return True

    def read(self, shard_range: ShardRange) -> list[Row]:
        """One task."""
        batches = read_shard_range(self.stream, self.state, shard_range, self.options.fetch, stream_name="games")
        return rows_of(batches)

    def action(self, shard_ranges: list[ShardRange] | None = None) -> list[Row]:
        """All tasks of one action on the open batch."""
        assert self.open_batch is not None
        chosen = self.planner.shard_ranges(self.open_batch) if shard_ranges is None else shard_ranges
        return [row for shard_range in chosen for row in self.read(shard_range)]

    def complete(self, rows: list[Row]) -> None:
        self.delivered.append(rows)
        self.committed = len(self.log)

    def drain(self, *, most: int = 500) -> list[Row]:
        """Run batches until there is nothing new; the rows of these."""
        first = len(self.delivered)
        for _ in range(most):
            if self.open_batch is None and not self.plan():
                return [row for rows in self.delivered[first:] for row in rows]
            self.complete(self.action())
        raise AssertionError(f"not drained in {most} batches")

    def rows(self) -> list[Row]:
        return [row for rows in self.delivered for row in rows]


class UnprotectedEngine(Engine):
    """The control: tasks hand over what they find, and fix nothing before."""

    def read(self, shard_range: ShardRange) -> list[Row]:
        fetched = fetch_first(self.stream, shard_range, FetchOptions())
        self.state.record_shard_range_end(shard_range, fetched.end)
        found = fetched.rows.batches(
            stream="games", shard_id=shard_range.shard_id, first_ordinal=shard_range.start.rows
        )
        return rows_of(found)


def engine_on(stream: ModelStream, **changes: str) -> Engine:
    """A query with a state of its own."""
    return Engine(stream, MemoryObjects(), options(**changes))


def put(stream: ModelStream, *texts: str) -> None:
    """Records of one key."""
    for text in texts:
        stream.put("a", text.encode())


def read(engine: Engine) -> list[str]:
    """What the query still has to read."""
    return [row.data.decode() for row in engine.drain()]
