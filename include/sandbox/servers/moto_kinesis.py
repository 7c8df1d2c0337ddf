"""Where moto's Kinesis differs from Kinesis in a way that loses, doubles or hides records, and its corrections.

- Splitting and merging move the records into the children, so that they are delivered twice. Kinesis leaves them in
  the closed shards until the retention has passed.
- Puts go on into the first shard that covers the key, closed or not, and miss the last key of a shard.
- A closed shard that is read to its end has another iterator. Kinesis gives none, which marks its end.
- Sequence numbers are 1, 2, 3 in each shard. In Kinesis they are long, have gaps, and belong to one shard.
- `MillisBehindLatest` can be 0 though more is there.
- Nothing expires: neither records after the retention nor iterators after five minutes.
- Reads run beside puts without a lock.

What moto does not do at all, throttling, can be switched on (`MotoKinesis.throttle`). Enhanced fan-out is in
`moto_fan_out`.
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
#: Kinesis' own numbers have 56 digits; the step leaves gaps.
_FIRST_NUMBER = 49_600_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_STEP = 1 << 64
_numbers = itertools.count(_FIRST_NUMBER, _STEP)


@dataclass
class MotoKinesis:
    """What can be switched while moto runs. Counts for all streams of the process.

    Attributes:
        creating_seconds: how long a registered consumer is not active yet.
        subscription_seconds, retake_seconds: how long a subscription lives, and how long it refuses the next one.
        heartbeat_seconds: how often an idle subscription sends an event without records.
        immediate_first_event: whether an idle subscription sends its first one without waiting.
        subscriptions_to_cut: how many subscriptions to cut off within their next event.
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
    retake_seconds: float = 5.0
    heartbeat_seconds: float = 5.0
    immediate_first_event: bool = True
    records_per_event: int = 1000
    subscriptions_to_cut: int = 0
    subscriptions: int = 0
    rejected_subscriptions: int = 0
    _reads: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    def admit(self, stream: str, shard: str) -> None:
        """Count a read of a shard, or refuse it."""
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
        """Refuse an iterator that is too old."""
        if time.time() - made_at > self.iterator_seconds:
            self.expired += 1
            raise JsonRESTError("ExpiredIteratorException", "Iterator expired.")


MotoKinesis.current = MotoKinesis()


def correct_kinesis() -> None:
    """Correct moto's Kinesis in this process. Idempotent; call it before the first request."""
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
        number = next(_numbers)
        shard.records[number] = Record(partition_key, data, number, explicit_hash_key)
    return str(number)


def _open_shard_for_key(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
    from moto.utilities.utils import md5_hash

    digest = md5_hash(partition_key.encode()).hexdigest()
    key = int(explicit_hash_key) if explicit_hash_key else int(digest, 16)
    covering = (shard for shard in stream.shards.values() if shard.is_open and shard.starting_hash <= key)
    return next(shard for shard in covering if key <= shard.ending_hash)


def _locked(put: Any) -> Any:
    """A put that no resharding comes between: it would land in a shard that is closed by then."""

    def corrected(stream: Any, *arguments: Any, **named: Any) -> Any:
        with LOCK:
            return put(stream, *arguments, **named)

    return corrected


def _preserve_records(reshard: Any) -> Any:
    """Resharding that leaves records where they are: it sees the shards empty."""

    def corrected(stream: Any, *arguments: Any) -> None:
        with LOCK:
            kept = {name: shard.records for name, shard in stream.shards.items()}
            for shard in stream.shards.values():
                shard.records = {}
            try:
                reshard(stream, *arguments)
            finally:
                for name, records in kept.items():
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


def _get_shard_iterator(  # as moto calls it
    backend: Any, stream_arn: str, stream_name: str, shard_id: str, kind: str, number: str, at: float
) -> str:
    stream = backend.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise ResourceNotFoundError(f"Shard {shard_id} in stream {stream.stream_name} does not exist")
    with LOCK:
        return _iterator(stream.stream_name, shard_id, number_before(shard, kind, number, at))


def number_before(shard: Any, kind: str, number: str | None, at: float | None) -> int:
    """The number behind which a starting position begins. Call it under the lock."""
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
    """Remove what is older than the retention. Call it under the lock."""
    horizon = unix_time() - retention_hours * 3600
    for number in [number for number, record in shard.records.items() if record.created_at < horizon]:
        del shard.records[number]


def _iterator(stream: str, shard: str, after: int) -> str:
    state = {"stream": stream, "shard": shard, "after": str(after), "made_at": time.time()}
    return base64.b64encode(json.dumps(state).encode()).decode()
