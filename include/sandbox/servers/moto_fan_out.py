"""Adds enhanced fan-out to moto's Kinesis: records are pushed to registered consumers.

moto registers two consumers with the same name, deregisters the wrong ones by name, and has no status CREATING. These
are corrected here. SubscribeToShard is added: a response in AWS's event stream format that sends records, or events
without records while the shard is idle. At the end of a closed shard it sends the child shards. A subscription ends
after five minutes. A second subscription of the same consumer is rejected within five seconds and replaces the first
one later.

Times and the number of subscriptions to abort are in `MotoKinesis`.
"""

from __future__ import annotations

import itertools
import json
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.core.utils import unix_time
from moto.kinesis.exceptions import ConsumerNotFound, ResourceInUseError, ResourceNotFoundError
from moto.kinesis.models import Consumer, KinesisBackend
from moto.kinesis.responses import KinesisResponse

from sandbox.servers.moto_kinesis import LOCK, MotoKinesis, expire, number_before

_MARK = "_deltaworks_fan_out"
_POLL_SECONDS = 0.02
_TEXT = 7
_versions = itertools.count(1)


@dataclass
class _CurrentSubscription:
    """The active subscription of a consumer to a shard; a later one replaces it."""

    number: int
    since: float


_current: dict[tuple[str, str], _CurrentSubscription] = {}
_numbers = itertools.count()


def add_fan_out() -> None:
    """Patches moto in this process. Idempotent; call it before the first request."""
    if getattr(KinesisResponse, _MARK, False):
        return
    describe = Consumer.to_json

    def with_status(consumer: Any, include_stream_arn: bool = False) -> dict[str, Any]:
        age = time.time() - consumer.created.timestamp()
        status = "ACTIVE" if age >= MotoKinesis.current.creating_seconds else "CREATING"
        return {**describe(consumer, include_stream_arn), "ConsumerStatus": status}

    corrections: tuple[tuple[type, str, Any], ...] = (
        (Consumer, "to_json", with_status),
        (KinesisBackend, "register_stream_consumer", _register),
        (KinesisBackend, "deregister_stream_consumer", _deregister),
        (KinesisResponse, "subscribe_to_shard", _subscribe_to_shard),
        (KinesisResponse, _MARK, True),
    )
    for owner, name, correction in corrections:
        setattr(owner, name, correction)


def _register(backend: Any, stream_arn: str, consumer_name: str) -> Any:
    stream = backend.describe_stream(stream_arn=stream_arn, stream_name=None)
    with LOCK:
        if any(consumer.consumer_name == consumer_name for consumer in stream.consumers):
            raise ResourceInUseError(f"Consumer {consumer_name} under stream {stream.stream_name} already exists.")
        if len(stream.consumers) >= MotoKinesis.current.max_consumers:
            raise JsonRESTError("LimitExceededException", "The limit of registered consumers is exceeded.")
        consumer = Consumer(consumer_name, backend.account_id, backend.region_name, stream_arn)
        # A consumer that is registered again under the same name gets a different ARN, as in Kinesis.
        consumer.consumer_arn += f":{int(time.time())}{next(_versions)}"
        stream.consumers.append(consumer)
    return consumer


def _deregister(backend: Any, stream_arn: str, consumer_name: str, consumer_arn: str) -> None:
    with LOCK:
        for stream in backend.streams.values():
            stream.consumers = [
                consumer
                for consumer in stream.consumers
                if consumer.consumer_arn != consumer_arn
                and (stream.arn, consumer.consumer_name) != (stream_arn, consumer_name)
            ]


def _subscribe_to_shard(response: Any) -> tuple[int, dict[str, str], Iterator[bytes]]:
    request, settings = json.loads(response.body), MotoKinesis.current
    consumer, shard_id, place = request["ConsumerARN"], request["ShardId"], request["StartingPosition"]
    backend = response.kinesis_backend
    stream = _stream_of(backend, consumer)
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise ResourceNotFoundError(f"Shard {shard_id} in stream {stream.stream_name} does not exist")
    with LOCK:
        current = _current.get((consumer, shard_id))
        if current is not None and time.monotonic() - current.since < settings.takeover_seconds:
            settings.rejected_subscriptions += 1
            raise ResourceInUseError(f"Another active subscription exists for this consumer and {shard_id}.")
        after = number_before(shard, place["Type"], place.get("SequenceNumber"), place.get("Timestamp"))
        number = next(_numbers)
        _current[consumer, shard_id] = _CurrentSubscription(number, time.monotonic())
        settings.subscriptions += 1
    events = _EventStream(backend, consumer, shard_id, number, after).frames()
    return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, events


def _stream_of(backend: Any, consumer_arn: str) -> Any:
    for stream in backend.streams.values():
        if stream.get_consumer_by_arn(consumer_arn):
            return stream
    raise ConsumerNotFound(consumer_arn, backend.account_id)


class _EventStream:
    """The events of one subscription, until it expires, is replaced, or its consumer is deregistered."""

    def __init__(self, backend: Any, consumer: str, shard_id: str, number: int, after: int) -> None:
        self._backend = backend
        self._consumer = consumer
        self._shard_id = shard_id
        self._number = number
        self._after = after

    def frames(self) -> Iterator[bytes]:
        settings = MotoKinesis.current
        ends_at = time.monotonic() + settings.subscription_seconds
        yield encode_event({":message-type": "event", ":event-type": "initial-response"}, b"{}")
        sent_at = -1.0 if settings.immediate_first_event else time.monotonic()
        while time.monotonic() < ends_at:
            refusal = self._exception_name()
            if refusal is not None:
                yield encode_event({":message-type": "exception", ":exception-type": refusal}, b"{}")
                return
            event = self._next_event(idle=time.monotonic() - sent_at >= settings.heartbeat_seconds)
            if event is None:
                time.sleep(_POLL_SECONDS)
                continue
            frame = _event_frame(event)
            if settings.subscriptions_to_abort > 0:
                settings.subscriptions_to_abort -= 1
                yield frame[: len(frame) // 2]
                raise ConnectionAbortedError("The subscription is aborted because of `subscriptions_to_abort`.")
            sent_at = time.monotonic()
            yield frame
            if "ContinuationSequenceNumber" not in event:
                return

    def _exception_name(self) -> str | None:
        """Returns the exception that ends this subscription now; None if it continues."""
        current = _current.get((self._consumer, self._shard_id))
        if current is None or current.number != self._number:
            return "ResourceInUseException"
        try:
            _stream_of(self._backend, self._consumer)
        except ConsumerNotFound:
            return "ResourceNotFoundException"
        return None

    def _next_event(self, *, idle: bool) -> dict[str, Any] | None:
        """Returns the next event; None if there are no records and no idle event is due."""
        stream = _stream_of(self._backend, self._consumer)
        shard = stream.shards[self._shard_id]
        with LOCK:
            expire(shard, stream.retention_period_hours)
            numbers = list(shard.records)
            begin = bisect_right(numbers, self._after)
            batch = numbers[begin : begin + MotoKinesis.current.records_per_event]
            records = [shard.records[number] for number in batch]
            left = begin + len(batch) < len(numbers)
            ended = not shard.is_open and not left
            children = [child.shard_id for child in stream.shards.values() if _is_child(child, self._shard_id)]
        if not records and not ended and not idle:
            return None
        self._after = batch[-1] if batch else self._after
        behind = max(1, int((unix_time() - records[-1].created_at) * 1000)) if left and records else 0
        event: dict[str, Any] = {
            "Records": [_record_fields(record) for record in records],
            "MillisBehindLatest": behind,
        }
        if ended:
            return event | {"ChildShards": [{"ShardId": child, "ParentShards": [self._shard_id]} for child in children]}
        return event | {"ContinuationSequenceNumber": str(self._after)}


def _is_child(shard: Any, parent: str) -> bool:
    return parent in (shard.parent, shard.adjacent_parent)


def _record_fields(record: Any) -> dict[str, Any]:
    arrived = record.created_at_datetime
    return {
        "SequenceNumber": str(record.sequence_number),
        "PartitionKey": record.partition_key,
        "Data": record.data,
        # With milliseconds, as GetRecords returns it.
        "ApproximateArrivalTimestamp": unix_time(arrived.replace(microsecond=arrived.microsecond // 1000 * 1000)),
    }


def _event_frame(event: dict[str, Any]) -> bytes:
    kind = {":message-type": "event", ":event-type": "SubscribeToShardEvent", ":content-type": "application/json"}
    return encode_event(kind, json.dumps(event).encode())


def encode_event(headers: dict[str, str], payload: bytes) -> bytes:
    """Encodes an event stream message: lengths, their CRC, headers, payload, CRC of the message."""
    head = b"".join(
        bytes([len(name)]) + name.encode() + bytes([_TEXT]) + len(value).to_bytes(2) + value.encode()
        for name, value in headers.items()
    )
    lengths = (16 + len(head) + len(payload)).to_bytes(4) + len(head).to_bytes(4)
    message = lengths + zlib.crc32(lengths).to_bytes(4) + head + payload
    return message + zlib.crc32(message).to_bytes(4)
