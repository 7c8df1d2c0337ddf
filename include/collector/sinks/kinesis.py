"""Puts events into a Kinesis stream, aggregated as by the Kinesis Producer Library.

An aggregated record is four magic bytes, a protobuf message and the MD5 of that message (aggregation-format.md of
awslabs/amazon-kinesis-producer). All parts share one partition key: readers drop parts whose key belongs to another
shard, which would happen after a reshard if keys differed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from collector.packing import SpooledEvent
from collector.records import PARTITION_KEYS, OutgoingRecord
from collector.sinks import DeadLetter, SinkBusyError
from collector.stream_writer import MAX_RECORD_BYTES, StreamWriter

MAGIC = b"\xf3\x89\x9a\xc2"
#: Maximum size of an aggregated record: small enough for readers and networks, far above a single event.
MAX_AGGREGATE_BYTES = 256 << 10
#: Magic bytes, digest, key and its tag.
_AGGREGATE_OVERHEAD_BYTES = 64
_KEY_TABLE, _RECORDS, _KEY_INDEX, _DATA = 0x0A, 0x1A, 0x08, 0x1A
_CONTINUATION_BIT, _PAYLOAD_MASK = 0x80, 0x7F


class KinesisSink:
    """Puts events into one stream. Not thread-safe."""

    def __init__(
        self, writer: StreamWriter, *, aggregate_bytes: int = MAX_AGGREGATE_BYTES, keys: random.Random | None = None
    ) -> None:
        self._writer = writer
        self._aggregate_bytes = aggregate_bytes
        self._keys = keys or random.SystemRandom()

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        """Puts events into the stream; returns oversized events as dead letters.

        Only rejected records are put again. A record whose reply was lost is duplicated.

        Raises:
            SinkBusyError: the stream did not accept all of them.
        """
        groups = list(group_by_size(events, self._aggregate_bytes))
        rejected = self._writer.put([self._record(group) for group in groups])
        dead_letters, unsent, reason = [], [], ""
        for rejection in rejected:
            group = groups[rejection.index]
            if rejection.status is None:
                unsent += group
                reason = rejection.reason
            elif len(group) == 1:
                dead_letters.append(DeadLetter(group[0], rejection.reason))
            else:  # no event is too large by itself, so put them one by one
                unsent += group
                reason = rejection.reason
        if unsent:
            # The caller learns of dead letters when it sends the remaining events again.
            raise SinkBusyError(reason, remaining=[*unsent, *(item.event for item in dead_letters)])
        return dead_letters

    def close(self) -> None:
        """Does nothing: no connection is open."""

    def _record(self, group: Sequence[SpooledEvent]) -> OutgoingRecord:
        key = str(self._keys.randint(1, PARTITION_KEYS))
        if len(group) == 1 and len(group[0].payload) >= self._aggregate_bytes:
            return OutgoingRecord(group[0].payload, key)
        return OutgoingRecord(aggregate([event.payload for event in group], key), key)


def group_by_size(events: Sequence[SpooledEvent], max_bytes: int) -> Iterator[list[SpooledEvent]]:
    """Yields the events in order, grouped up to the size of an aggregated record; a larger event is a group of
    its own."""
    group: list[SpooledEvent] = []
    size = _AGGREGATE_OVERHEAD_BYTES
    for event in events:
        needed = len(event.payload) + 16
        if group and size + needed > max_bytes:
            yield group
            group, size = [], _AGGREGATE_OVERHEAD_BYTES
        group.append(event)
        size += needed
    if group:
        yield group


def aggregate(payloads: Sequence[bytes], key: str) -> bytes:
    """Returns one aggregated record of several user records with the same partition key."""
    table = key.encode()
    parts = [bytes([_KEY_TABLE]), varint(len(table)), table]
    for payload in payloads:
        length = varint(len(payload))
        # Each record has the index of its key, always 0, and the data.
        inner = 2 + 1 + len(length) + len(payload)
        parts += [bytes([_RECORDS]), varint(inner), bytes([_KEY_INDEX, 0, _DATA]), length, payload]
    message = b"".join(parts)
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def varint(number: int) -> bytes:
    """Encodes a number as a protobuf varint: seven bits per byte, lowest first."""
    out = bytearray()
    while number > _PAYLOAD_MASK:
        out.append((number & _PAYLOAD_MASK) | _CONTINUATION_BIT)
        number >>= 7
    out.append(number)
    return bytes(out)


def kinesis_sink(client: object, stream: str, *, record_bytes: int = MAX_RECORD_BYTES) -> KinesisSink:
    """Creates the sink of a stream with a boto3 client."""
    return KinesisSink(StreamWriter(client, stream, record_bytes=record_bytes))
