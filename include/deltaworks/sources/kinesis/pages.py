"""Pages of a shard's records, as columns: answers of GetRecords, and events of a subscription.

A subscription is one long answer, of five minutes at most, framed as AWS frames event streams. boto3 makes the call and
reads its first message; the others are read here. Both kinds of page are parsed by orjson, so both ways of reading give
the same rows: boto3 spends more on a record than all the rest does.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from botocore.eventstream import EventStreamBuffer
from botocore.eventstream import ParserError as FrameError
from urllib3.exceptions import HTTPError

from deltaworks.errors import TransientError

_OK = 200
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Records of a shard in order, as columns of equal length.

    Attributes:
        arrivals: microseconds since 1970, by the server's clock.
        next_iterator: None when the shard is closed and this was its end.
        behind_ms: how far the end of this page is from the shard's newest record; 0 is its tip.
    """

    sequence_numbers: list[str] = field(default_factory=list)
    partition_keys: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    arrivals_us: list[int] = field(default_factory=list)
    next_iterator: str | None
    behind_ms: int

    def __len__(self) -> int:
        return len(self.sequence_numbers)

    def slice(self, begin: int, end: int) -> Page:
        """The records from `begin` up to, not including, `end`."""
        return Page(
            sequence_numbers=self.sequence_numbers[begin:end],
            partition_keys=self.partition_keys[begin:end],
            data=self.data[begin:end],
            arrivals_us=self.arrivals_us[begin:end],
            next_iterator=self.next_iterator,
            behind_ms=self.behind_ms,
        )


def parse_page(answer: Any) -> Page:
    """The page in a GetRecords answer that went through `take_body`."""
    records = answer.get("Records", [])
    return Page(
        sequence_numbers=[record["SequenceNumber"] for record in records],
        partition_keys=[record["PartitionKey"] for record in records],
        data=[binascii.a2b_base64(record["Data"]) for record in records],
        arrivals_us=[round(record["ApproximateArrivalTimestamp"] * 1e6) for record in records],
        next_iterator=answer.get("NextShardIterator"),
        behind_ms=int(answer.get("MillisBehindLatest") or 0),
    )


def parse_records_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """A handler of boto3's `before-parse` event that parses the body in boto3's place. Errors are left to boto3.

    Raises:
        TransientError: KINESIS_ANSWER_UNREADABLE when the body is no JSON.
    """
    if response_dict["status_code"] != _OK:
        return
    try:
        customized_response_dict.update(orjson.loads(response_dict["body"]))
    except orjson.JSONDecodeError as error:
        raise TransientError(
            "KINESIS_ANSWER_UNREADABLE",
            f"GetRecords answered {len(response_dict['body'])} bytes that are no JSON: {error}.",
            hint="Check what stands between this machine and the endpoint.",
        ) from error
    response_dict["body"] = b"{}"


class SubscriptionEnded(Exception):
    """A subscription ended before its shard did: after its time, taken over by another reader, or cut off."""


class Subscription:
    """The pages of one subscription. For one thread; `close` it, or Kinesis keeps sending until its time is over."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._messages = self._decode()

    def next(self) -> Page:
        """The next event, which may be without records; Kinesis sends one every few seconds.

        The page's `next_iterator` is the number behind which the next subscription begins, also where no record was
        found; None at the end of a closed shard.

        Raises:
            SubscriptionEnded: with the service's word for why, or what broke.
        """
        try:
            message = next(self._messages, None)
        except (HTTPError, OSError, FrameError) as error:
            raise SubscriptionEnded(f"cut off: {error}") from error
        if message is None:
            raise SubscriptionEnded("its time is over")
        headers = message.headers
        if headers.get(":message-type") != "event":
            raise SubscriptionEnded(str(headers.get(":exception-type") or headers.get(":error-code")))
        try:
            event = orjson.loads(message.payload)
        except orjson.JSONDecodeError as error:
            raise SubscriptionEnded(f"no JSON: {error}") from error
        goes_on = None if event.get("ChildShards") else event.get("ContinuationSequenceNumber")
        return parse_page({**event, "NextShardIterator": goes_on or None})

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._frames.close()

    def _decode(self) -> Iterator[Any]:
        buffer = EventStreamBuffer()
        for frame in self._frames.stream():
            buffer.add_data(frame)
            yield from buffer


class Frames:
    """The messages of an event stream, still encoded, one at a time: who reads one has taken nothing of the next."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._chunks = raw.stream()
        self._buffer = bytearray()

    def stream(self) -> Iterator[bytes]:
        """The messages that were not taken yet. One that is cut off is left out."""
        while self._fill(_LENGTH_BYTES):
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if not self._fill(length):
                return
            frame = bytes(self._buffer[:length])
            del self._buffer[:length]
            yield frame

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._raw.close()

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._buffer += chunk
        return True


def split_event_stream(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """A handler of boto3's `before-parse` event: boto3 takes the first message, the rest is under `Frames`."""
    if response_dict["status_code"] != _OK:
        return
    frames = Frames(response_dict["body"])
    response_dict["body"] = frames
    customized_response_dict["Frames"] = frames
