"""One answer of GetRecords as columns. Parsed by orjson: boto3 spends more on a record than all the rest does."""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Any

import orjson

from deltaworks.errors import TransientError

_OK = 200


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
    arrivals: list[int] = field(default_factory=list)
    next_iterator: str | None
    behind_ms: int

    def __len__(self) -> int:
        return len(self.sequence_numbers)

    def part(self, begin: int, end: int) -> Page:
        """The records from `begin` up to, not including, `end`."""
        return Page(
            sequence_numbers=self.sequence_numbers[begin:end],
            partition_keys=self.partition_keys[begin:end],
            data=self.data[begin:end],
            arrivals=self.arrivals[begin:end],
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
        arrivals=[round(record["ApproximateArrivalTimestamp"] * 1e6) for record in records],
        next_iterator=answer.get("NextShardIterator"),
        behind_ms=int(answer.get("MillisBehindLatest") or 0),
    )


def take_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
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
