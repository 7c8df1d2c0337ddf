"""Plans batches in the driver: the start positions of each shard, and whether there are new records.

An exception here ends the query, so every call retries outages of Kinesis and storage.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.kinesis.positions import (
    INITIAL_BATCH,
    Offset,
    Position,
    ShardRange,
    ShardRangeLimits,
    latest_time,
)
from deltaworks.sources.kinesis.shard_pages import NewRecordProbe
from deltaworks.sources.kinesis.shards import Shard, finished_shards_to_retain, startable_shards
from deltaworks.sources.kinesis.state import BatchEnd, Query, QueryState, end_of_batch, lag_report
from deltaworks.sources.kinesis.stream_api import StreamApi, StreamSummary, register_and_wait

_LOGGER = logging.getLogger(__name__)
_LIST_SECONDS = 10.0
_SUMMARY_SECONDS = 300.0
_POLL_SECONDS = 1.0
#: A shard can be subscribed to again only after this time.
_FAN_OUT_POLL_SECONDS = 5.0
_SAVE_CAUGHT_UP_SECONDS = 600.0
#: Maximum bytes in memory per task, regardless of maxBytes.
_MAX_SHARD_RANGE_BYTES = 64 << 20


class Planner:
    """Plans the batches of one query. Runs in the driver. Not thread-safe."""

    def __init__(
        self,
        stream: StreamApi,
        state: QueryState,
        options: KinesisOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stream = stream
        self._state = state
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._probe = NewRecordProbe(stream, has_own_throughput=options.consumer is not None)
        self._consumer: str | None = None
        self._query: Query | None = None
        self._until: datetime | None = None
        self._last_end: tuple[tuple[str, int], BatchEnd] | None = None
        self._listed: list[Shard] = []
        self._summary: StreamSummary | None = None
        self._last_runs: dict[str, float] = {}
        self._max_rows = options.max_records
        self._gap_count: int | None = None
        self._is_cleaned = False

    def initial_offset(self) -> Offset:
        """Returns the offset at which a query without a checkpoint begins. The same on every call.

        Raises:
            ContractError: KINESIS_STATE_OF_ANOTHER_QUERY, the query in the state is past that offset.
        """
        query = self._open_query()
        if self._options.start_offset is not None:
            return self._check_planned(self._options.start_offset)
        latest_batch = self._state.latest_plan(query.begin.run)
        if latest_batch is not None and latest_batch > 0:
            raise ContractError(
                "KINESIS_STATE_OF_ANOTHER_QUERY",
                f"The state belongs to a query that reached batch {latest_batch}, but this query has no checkpoint.",
            )
        return query.begin

    def prepare_for_available_now(self) -> datetime:
        """Limits all further batches to records that have arrived by now (`AvailableNow`)."""
        self._open_query()
        self._until = self._stream.now()
        return self._until

    def next_batch(self, start: Offset, *, max_rows: int | None = None) -> Offset | None:
        """Plans the batch after `start` and returns its offset; None if there are no new records.

        Raises:
            ContractError: KINESIS_STATE_LOST, the state has no plan of `start`.
        """
        self._max_rows = max_rows or self._options.max_records
        end = self._batch_end(start)
        listed_shards = self._list_shards(force=bool(end.newly_closed))
        new_shards = startable_shards(listed_shards, live=end.live, finished=end.finished)
        if not new_shards and not end.truncated_shards and not self._has_new_records(start, end):
            return None
        positions = end.positions_since(self._probe.caught_up_times) | {
            shard.shard_id: self._first_position(shard, end) for shard in new_shards
        }
        retained = finished_shards_to_retain(end.finished, listed_shards, live=positions)
        planned = Offset(
            run=start.run,
            batch=start.batch + 1,
            shards=positions,
            finished={shard: since for shard, since in end.finished.items() if shard in retained},
            until=self._until,
        )
        return self._state.record_plan(planned)

    def shard_ranges(self, end: Offset) -> list[ShardRange]:
        """Returns the shard ranges of a batch, one per shard and task. Deterministic, even if the batch is planned
        again.
        """
        if end.batch == INITIAL_BATCH or not end.shards:
            return []
        self._open_query()
        self._check_planned(end)
        count = len(end.shards)
        limits = ShardRangeLimits(
            rows=math.ceil(self._max_rows / count),
            size=min(math.ceil(self._options.max_bytes / count), _MAX_SHARD_RANGE_BYTES),
            seconds=float(self._options.max_seconds),
        )
        retention = self._stream_summary().retention.total_seconds()
        return [
            ShardRange(
                run=end.run,
                batch=end.batch,
                shard_id=shard,
                start=end.shards[shard],
                limits=limits,
                until=end.until,
                retention_seconds=retention,
                consumer=self._consumer,
            )
            for shard in sorted(end.shards)
        ]

    def lag_report(self) -> dict[str, Any] | None:
        """Returns how far each shard is behind its latest record, as of the last batch; None before the first batch."""
        if self._last_end is None:
            return None
        (_, batch), end = self._last_end
        if self._gap_count is None:
            self._gap_count = len(self._state.gaps())
        return lag_report(end, self._probe.caught_up_times, batch=batch, gaps=self._gap_count)

    def commit(self, end: Offset) -> None:
        """Deletes the state of old batches; the last `retained_batches` remain. A failure is only logged, and a later
        call deletes the rest.
        """
        before = end.batch - self._options.retained_batches + 1
        try:
            self._state.delete_batches(end.run, before=before, all_older=not self._is_cleaned)
            self._is_cleaned = True
        except Exception as error:  # cleanup must not end the query
            self._is_cleaned = False
            _LOGGER.warning("Could not delete old batches from the query's state: %s", error)

    def _open_query(self) -> Query:
        """Returns where the query starts and records that on the first run. Also ensures that its fan-out consumer is
        active.
        """
        if self._query is None:
            self._query = self._state.query() or self._state.begin_query(self._new_query())
            stream = self._stream_summary()
            if (stream.arn, stream.created) != (self._query.stream_arn, self._query.stream_created):
                raise ContractError(
                    "KINESIS_STREAM_REPLACED",
                    f"The stream was recreated: the query began with {self._query.stream_arn}, created at "
                    f"{self._query.stream_created}; now it is {stream.arn}, created at {stream.created}.",
                )
        if self._options.consumer is not None and self._consumer is None:
            self._consumer = register_and_wait(self._stream, self._options.consumer, sleep=self._sleep).arn
        return self._query

    def _new_query(self) -> Query:
        if self._options.start_offset is not None:
            raise _state_lost_error(self._options.start_offset)
        listed_shards, stream, now = self._stream.shards(), self._stream_summary(), self._stream.now()
        match self._options.initial_position:
            case "latest":
                # Closed shards have no records newer than now.
                positions = {shard.shard_id: Position(at=now, since=now) for shard in listed_shards if not shard.closed}
            case "at_timestamp":
                timestamp = self._options.initial_timestamp
                roots = startable_shards(listed_shards, live=(), finished=())
                positions = {shard.shard_id: Position(at=timestamp, since=timestamp) for shard in roots}
            case _:
                positions = {
                    shard.shard_id: Position() for shard in startable_shards(listed_shards, live=(), finished=())
                }
        begin = Offset(run=uuid.uuid4().hex, batch=INITIAL_BATCH, shards=positions)
        return Query(begin=begin, stream_arn=stream.arn, stream_created=stream.created)

    def _first_position(self, shard: Shard, end: BatchEnd) -> Position:
        """Returns where to start a shard whose parents are finished. Its records arrived after the parents closed."""
        begin = self._open_query().begin
        since = begins_at = next((position.at for position in begin.shards.values()), None)
        for parent in shard.parents:
            since = latest_time(since, end.finished.get(parent))
        return Position(at=begins_at, since=since)

    def _check_planned(self, offset: Offset) -> Offset:
        """Returns the offset; raises KINESIS_STATE_LOST if the state has no plan for its batch."""
        is_this_query = self._open_query().begin.run == offset.run
        if not is_this_query or self._state.plan(offset.run, offset.batch) is None:
            raise _state_lost_error(offset)
        return offset

    def _batch_end(self, start: Offset) -> BatchEnd:
        key = (start.run, start.batch)
        if self._last_end is None or self._last_end[0] != key:
            if start.batch == INITIAL_BATCH:
                self._open_query()
            else:
                self._check_planned(start)
            end = end_of_batch(self._state, start)
            self._probe.reset(self._state.caught_up_times(*key))
            if self._gap_count is not None:
                self._gap_count += sum(shard_range.gap is not None for shard_range in end.ends.values())
            self._last_end = (key, end)
        return self._last_end[1]

    def _has_new_records(self, start: Offset, end: BatchEnd) -> bool:
        until = self._until
        if until is None:
            pause = _POLL_SECONDS if self._consumer is None else _FAN_OUT_POLL_SECONDS
            self._sleep(max(self._last_runs.get("poll", -math.inf) + pause - self._clock(), 0.0))
            self._last_runs["poll"] = self._clock()
        idle_positions = {
            shard: position
            for shard, position in end.positions_since(self._probe.caught_up_times).items()
            if until is None or position.since is None or position.since < until
        }
        if self._probe.has_records(idle_positions, until=until):
            return True
        if self._is_due("caught_up_times", _SAVE_CAUGHT_UP_SECONDS):
            self._state.save_caught_up_times(start.run, start.batch, self._probe.caught_up_times)
        return False

    def _list_shards(self, *, force: bool) -> list[Shard]:
        if force or self._is_due("list", _LIST_SECONDS):
            self._listed = self._stream.shards()
        return self._listed

    def _stream_summary(self) -> StreamSummary:
        if self._summary is None or self._is_due("summary", _SUMMARY_SECONDS):
            self._summary = self._stream.summary()
        return self._summary

    def _is_due(self, name: str, seconds: float) -> bool:
        """Returns whether `seconds` have passed since `name` was last due, and restarts its timer in that case."""
        now = self._clock()
        if now - self._last_runs.get(name, -math.inf) < seconds:
            return False
        self._last_runs[name] = now
        return True


def _state_lost_error(offset: Offset) -> ContractError:
    return ContractError(
        "KINESIS_STATE_LOST",
        f"The query's state has no plan of batch {offset.batch} of run {offset.run}, from which it should continue.",
    )
