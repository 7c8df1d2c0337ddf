"""Parses GetRecords responses and subscription events into pages: consecutive records of a shard as columns.

A subscription is one long response, of at most five minutes, in the AWS event stream format. boto3 makes the call and
reads the first message; this module reads the remaining ones. orjson parses both kinds of pages, because boto3's parser
takes longer than all other processing of a record.
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
    """Consecutive records of a shard, as columns of equal length.

    Attributes:
        arrivals_us: microseconds since 1970, by the server's clock.
        next_iterator: None at the end of a closed shard.
        behind_ms: milliseconds from the page's end to the shard's latest record (MillisBehindLatest); 0 if caught up.
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
        """Returns the records from `begin` to before `end`."""
        return Page(
            sequence_numbers=self.sequence_numbers[begin:end],
            partition_keys=self.partition_keys[begin:end],
            data=self.data[begin:end],
            arrivals_us=self.arrivals_us[begin:end],
            next_iterator=self.next_iterator,
            behind_ms=self.behind_ms,
        )


def parse_page(response: Any) -> Page:
    """Converts a GetRecords response to a page. `parse_records_body` must have parsed the response."""
    records = response.get("Records", [])
    return Page(
        sequence_numbers=[record["SequenceNumber"] for record in records],
        partition_keys=[record["PartitionKey"] for record in records],
        data=[binascii.a2b_base64(record["Data"]) for record in records],
        arrivals_us=[round(record["ApproximateArrivalTimestamp"] * 1e6) for record in records],
        next_iterator=response.get("NextShardIterator"),
        behind_ms=int(response.get("MillisBehindLatest") or 0),
    )


def parse_records_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parses the response body with orjson, as a handler of boto3's `before-parse` event. boto3 parses error responses.

    Raises:
        TransientError: KINESIS_ANSWER_UNREADABLE, the body is not JSON.
    """
    if response_dict["status_code"] != _OK:
        return
    try:
        customized_response_dict.update(orjson.loads(response_dict["body"]))
    except orjson.JSONDecodeError as error:
        raise TransientError(
            "KINESIS_ANSWER_UNREADABLE",
            f"GetRecords returned {len(response_dict['body'])} bytes that are not JSON: {error}.",
        ) from error
    response_dict["body"] = b"{}"


class SubscriptionEnded(Exception):
    """Raised when a subscription ends before its shard: after five minutes, because another reader took it over, or
    because the connection was cut.
    """


class Subscription:
    """One SubscribeToShard subscription, read page by page. Not thread-safe. Call `close`; otherwise Kinesis sends
    until the subscription expires.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._messages = self._decode()

    def next(self) -> Page:
        """Returns the page of the next event. It may be empty; Kinesis sends an event every few seconds.

        The page's `next_iterator` is the sequence number after which the next subscription begins; None at the end of a
        closed shard.

        Raises:
            SubscriptionEnded: with the service's error code or the exception's text.
        """
        try:
            message = next(self._messages, None)
        except (HTTPError, OSError, FrameError) as error:
            raise SubscriptionEnded(f"cut off: {error}") from error
        if message is None:
            raise SubscriptionEnded("expired")
        headers = message.headers
        if headers.get(":message-type") != "event":
            raise SubscriptionEnded(str(headers.get(":exception-type") or headers.get(":error-code")))
        try:
            event = orjson.loads(message.payload)
        except orjson.JSONDecodeError as error:
            raise SubscriptionEnded(f"no JSON: {error}") from error
        continuation = None if event.get("ChildShards") else event.get("ContinuationSequenceNumber")
        return parse_page({**event, "NextShardIterator": continuation or None})

    def close(self) -> None:
        """Ends the subscription. Idempotent."""
        self._frames.close()

    def _decode(self) -> Iterator[Any]:
        buffer = EventStreamBuffer()
        for frame in self._frames.stream():
            buffer.add_data(frame)
            yield from buffer


class Frames:
    """Splits an AWS event stream into its encoded messages. Reads no further than the current message."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._chunks = raw.stream()
        self._buffer = bytearray()

    def stream(self) -> Iterator[bytes]:
        """Yields the remaining messages. A truncated message is dropped."""
        while self._fill(_LENGTH_BYTES):
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if not self._fill(length):
                return
            frame = bytes(self._buffer[:length])
            del self._buffer[:length]
            yield frame

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._raw.close()

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._buffer += chunk
        return True


def split_event_stream(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Makes boto3 parse only the first message and exposes the rest as `Frames`; a handler of boto3's `before-parse`
    event.
    """
    if response_dict["status_code"] != _OK:
        return
    frames = Frames(response_dict["body"])
    response_dict["body"] = frames
    customized_response_dict["Frames"] = frames
