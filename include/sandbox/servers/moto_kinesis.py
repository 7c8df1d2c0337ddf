"""Corrects moto's Kinesis where it loses, duplicates or hides records.

- Splitting and merging move records into the child shards, so they are delivered twice. In Kinesis they stay in the
  closed shards until they expire.
- Puts go to the first shard that covers the key, even a closed one, and miss the last key of a shard.
- A closed shard that was read to its end returns another iterator. Kinesis returns none, which marks its end.
- Sequence numbers are 1, 2, 3 in each shard. In Kinesis they are long, have gaps, and are unique in a stream.
- `MillisBehindLatest` can be 0 although the shard has more records.
- Nothing expires. In Kinesis records expire after the retention period and iterators after five minutes.
- Reads are not synchronized with puts.

Throttling, which moto lacks, can be enabled with `MotoKinesis.throttle`. Enhanced fan-out is in `moto_fan_out`.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from moto.core.exceptions import JsonRESTError
from moto.core.utils import unix_time
from moto.kinesis.exceptions import ResourceNotFoundError
from moto.kinesis.models import KinesisBackend, Record, Shard, Stream

_MARK = "_deltaworks_corrected"
LOCK = threading.RLock()
#: Sequence numbers of Kinesis have 56 digits and gaps.
_FIRST_NUMBER = 49_600_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_SEQUENCE_NUMBER_STEP = 1 << 64
_next_sequence_number = itertools.count(_FIRST_NUMBER, _SEQUENCE_NUMBER_STEP)


@dataclass
class MotoKinesis:
    """Settings that can be changed while moto runs, and counters. They apply to all streams of the process.

    Attributes:
        creating_seconds: how long a registered consumer has status CREATING.
        subscription_seconds: duration of a subscription.
        takeover_seconds: how long another subscription of the same consumer is rejected.
        heartbeat_seconds: how often an idle subscription sends an event without records.
        immediate_first_event: whether an idle subscription sends its first event immediately.
        subscriptions_to_abort: number of subscriptions to abort during their next event.
    """

    current: ClassVar[MotoKinesis]
    throttle: bool = False
    reads_per_second: int = 5
    iterator_seconds: float = 300.0
    throttled: int = 0
    expired: int = 0
    creating_seconds: float = 0.0
    max_consumers: int = 20
    subscription_seconds: float = 300.0
    takeover_seconds: float = 5.0
    heartbeat_seconds: float = 5.0
    immediate_first_event: bool = True
    records_per_event: int = 1000
    subscriptions_to_abort: int = 0
    subscriptions: int = 0
    rejected_subscriptions: int = 0
    _reads: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    def admit(self, stream: str, shard: str) -> None:
        """Counts a read of a shard; raises if its read limit is exceeded and throttling is enabled."""
        if not self.throttle:
            return
        now, reads = time.monotonic(), self._reads.setdefault((stream, shard), deque())
        while reads and reads[0] <= now - 1.0:
            reads.popleft()
        if len(reads) >= self.reads_per_second:
            self.throttled += 1
            message = f"Rate exceeded for shard {shard} in stream {stream}."
            raise JsonRESTError("ProvisionedThroughputExceededException", message)
        reads.append(now)

    def check_age(self, made_at: float) -> None:
        """Raises if an iterator has expired. `made_at` is its creation time in epoch seconds."""
        if time.time() - made_at > self.iterator_seconds:
            self.expired += 1
            raise JsonRESTError("ExpiredIteratorException", "Iterator expired.")


MotoKinesis.current = MotoKinesis()


def correct_kinesis() -> None:
    """Patches moto's Kinesis in this process. Idempotent; call it before the first request."""
    if getattr(Shard, _MARK, False):
        return
    corrections: tuple[tuple[type, str, Any], ...] = (
        (Shard, "put_record", _put_into_shard),
        (Shard, "to_json", _describe_shard),
        (Stream, "get_shard_for_key", _open_shard_for_key),
        (Stream, "put_record", _locked(Stream.put_record)),
        (Stream, "split_shard", _preserve_records(Stream.split_shard)),
        (Stream, "merge_shards", _preserve_records(Stream.merge_shards)),
        (KinesisBackend, "get_shard_iterator", _get_shard_iterator),
        (KinesisBackend, "get_records", _get_records),
        (Shard, _MARK, True),
    )
    for owner, name, correction in corrections:
        setattr(owner, name, correction)


def _put_into_shard(shard: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
    with LOCK:
        number = next(_next_sequence_number)
        shard.records[number] = Record(partition_key, data, number, explicit_hash_key)
    return str(number)


def _open_shard_for_key(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
    from moto.utilities.utils import md5_hash

    digest = md5_hash(partition_key.encode()).hexdigest()
    key = int(explicit_hash_key) if explicit_hash_key else int(digest, 16)
    covering = (shard for shard in stream.shards.values() if shard.is_open and shard.starting_hash <= key)
    return next(shard for shard in covering if key <= shard.ending_hash)


def _locked(put: Any) -> Any:
    """Wraps a put in the lock, so that no concurrent reshard closes its shard."""

    def corrected(stream: Any, *arguments: Any, **named: Any) -> Any:
        with LOCK:
            return put(stream, *arguments, **named)

    return corrected


def _preserve_records(reshard: Any) -> Any:
    """Wraps a reshard so that records stay in their shards."""

    def corrected(stream: Any, *arguments: Any) -> None:
        with LOCK:
            records_by_shard = {name: shard.records for name, shard in stream.shards.items()}
            for shard in stream.shards.values():
                shard.records = {}
            try:
                reshard(stream, *arguments)
            finally:
                for name, records in records_by_shard.items():
                    stream.shards[name].records = records

    return corrected


def _describe_shard(shard: Any) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(next(iter(shard.records), _FIRST_NUMBER))}
    if not shard.is_open:
        numbers["EndingSequenceNumber"] = str(next(reversed(shard.records), _FIRST_NUMBER))
    described: dict[str, Any] = {
        "ShardId": shard.shard_id,
        "HashKeyRange": {"StartingHashKey": str(shard.starting_hash), "EndingHashKey": str(shard.ending_hash)},
        "SequenceNumberRange": numbers,
    }
    if shard.parent:
        described["ParentShardId"] = shard.parent
    if shard.adjacent_parent:
        described["AdjacentParentShardId"] = shard.adjacent_parent
    return described


def _get_shard_iterator(  # signature as called by moto
    backend: Any, stream_arn: str, stream_name: str, shard_id: str, kind: str, number: str, at: float
) -> str:
    stream = backend.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise ResourceNotFoundError(f"Shard {shard_id} in stream {stream.stream_name} does not exist")
    with LOCK:
        return _iterator(stream.stream_name, shard_id, number_before(shard, kind, number, at))


def number_before(shard: Any, kind: str, number: str | None, at: float | None) -> int:
    """Returns the sequence number after which a starting position begins. Call it with `LOCK` held."""
    match kind:
        case "AT_SEQUENCE_NUMBER":
            return int(number or 0) - 1
        case "AFTER_SEQUENCE_NUMBER":
            return int(number or 0)
        case "LATEST":
            return int(next(reversed(shard.records), 0))
        case "AT_TIMESTAMP":
            older = [stored for stored, record in shard.records.items() if record.created_at < float(at or 0)]
            return int(older[-1]) if older else 0
    return 0


def _get_records(
    backend: Any, stream_arn: str, shard_iterator: str, limit: int | None
) -> tuple[str | None, list[Any], int]:
    state, settings = json.loads(base64.b64decode(shard_iterator)), MotoKinesis.current
    stream = backend.describe_stream(stream_arn=stream_arn, stream_name=state["stream"])
    shard = stream.get_shard(state["shard"])
    with LOCK:
        settings.check_age(state["made_at"])
        settings.admit(state["stream"], state["shard"])
        expire(shard, stream.retention_period_hours)
        numbers = list(shard.records)
        begin = bisect_right(numbers, int(state["after"]))
        batch = numbers[begin : begin + (limit or 10_000)]
        records = [shard.records[number] for number in batch]
        left = begin + len(batch) < len(numbers)
        closed = not shard.is_open
    after = batch[-1] if batch else int(state["after"])
    if closed and not left:
        return None, records, 0
    behind = max(1, int((unix_time() - records[-1].created_at) * 1000)) if left and records else int(left)
    return _iterator(state["stream"], state["shard"], after), records, behind


def expire(shard: Any, retention_hours: int) -> None:
    """Deletes records older than the retention period. Call it with `LOCK` held."""
    horizon = unix_time() - retention_hours * 3600
    for number in [number for number, record in shard.records.items() if record.created_at < horizon]:
        del shard.records[number]


def _iterator(stream: str, shard: str, after: int) -> str:
    state = {"stream": stream, "shard": shard, "after": str(after), "made_at": time.time()}
    return base64.b64encode(json.dumps(state).encode()).decode()
