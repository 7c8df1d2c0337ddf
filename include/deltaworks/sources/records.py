"""Records of streams of all kinds: their numbers, their payloads, and how much was read of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.control.clock import EARLIEST_US, LATEST_US, micros_to_iso
from deltaworks.errors import ContractError
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.sources.payload import Compression

#: Of the 63 bits of a `_seq`, 44 count the records of one partition or shard (17 trillion), 19 number these.
ORDINAL_BITS, PARTITION_NUMBER_BITS = 44, 19


def record_seq(partition: int, ordinal: int) -> int:
    """The `_seq` of a record's rows: unique in its stream, and growing with the ordinal.

    Args:
        number: of its partition or shard among all that the pipeline reads, from 0.
        ordinal: of the record within that, from 0.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, one of them does not fit.
    """
    if not (0 <= partition < 1 << PARTITION_NUMBER_BITS and 0 <= ordinal < 1 << ORDINAL_BITS):
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Record {ordinal} of partition or shard {partition} has no place in a 64-bit `_seq`.",
            hint=f"At most {1 << PARTITION_NUMBER_BITS} partitions or shards of {1 << ORDINAL_BITS} records: "
            "read it in a pipeline of its own.",
        )
    return partition << ORDINAL_BITS | ordinal


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a task reads it. `arrived_at_us` is when its stream took it, in epoch microseconds, 0 where that is
    not on record."""

    payload: Payload
    arrived_at_us: int


@dataclass(slots=True)
class ReadStatistics:
    """How much of a stream was read: records, bytes, and when the oldest and the newest of them arrived.

    In some streams the producer says when, and may say it in a unit that makes it year 55,000. `beyond_calendar` counts
    records whose time no date can name.
    """

    records: int = 0
    bytes: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None
    out_of_range_times: int = 0

    def count(self, records: Iterable[Record]) -> Iterator[Payload]:
        """The payloads, counted on their way."""
        for record in records:
            self.records += 1
            self.bytes += len(record.payload.data or b"")
            at = record.arrived_at_us
            self.out_of_range_times += not EARLIEST_US <= at <= LATEST_US
            self.oldest_us = at if self.oldest_us is None else min(self.oldest_us, at)
            self.newest_us = at if self.newest_us is None else max(self.newest_us, at)
            yield record.payload

    def add(self, other: ReadStatistics) -> None:
        """Add what another task has read."""
        self.records += other.records
        self.bytes += other.bytes
        self.out_of_range_times += other.out_of_range_times
        oldest = [at for at in (self.oldest_us, other.oldest_us) if at is not None]
        newest = [at for at in (self.newest_us, other.newest_us) if at is not None]
        self.oldest_us, self.newest_us = min(oldest, default=None), max(newest, default=None)

    def as_metadata(self) -> dict[str, Any]:
        """As the ledger keeps it; instants beyond the calendar as its first or last one."""
        facts: dict[str, Any] = {"records": self.records, "bytes": self.bytes}
        if self.oldest_us is not None and self.newest_us is not None:
            facts |= {
                "oldest_arrived_at": micros_to_iso(self.oldest_us),
                "newest_arrived_at": micros_to_iso(self.newest_us),
            }
        if self.out_of_range_times:
            facts["times_out_of_range"] = self.out_of_range_times
        return facts


def record_payload(
    seq: int,
    key: str,
    value: bytes,
    *,
    record: Mapping[str, Any] | None,
    compression: Compression,
    max_bytes: int,
    arrived_at_us: int | None = None,
) -> Payload:
    """A record's payload, decompressed where it is compressed; one that cannot be is kept as it is, with the reason.

    Args:
        arrived_at_us: when its stream took it, as the stream has it; None where it does not.
    """
    try:
        data = decompress(value, compression, max_bytes=max_bytes)
        return Payload(seq, key, data, record=record, arrived_at_us=arrived_at_us)
    except ContentTooLarge as error:
        reason = Reason(ReasonCode.TOO_LARGE, "", str(error))
    except DamagedContent as error:
        reason = Reason(ReasonCode.MALFORMED, "", str(error))
    return unreadable_payload(seq, key, value, reason, record=record, arrived_at_us=arrived_at_us)


def unreadable_payload(
    seq: int,
    key: str,
    value: bytes,
    reason: Reason,
    *,
    record: Mapping[str, Any] | None,
    arrived_at_us: int | None = None,
) -> Payload:
    """A record of which nothing can be read: its bytes go to quarantine whole, since nobody else keeps them."""
    return Payload(seq, key, value, reason, record=record or {}, arrived_at_us=arrived_at_us)


def decode_text(data: bytes | None) -> str | None:
    """Bytes as text, also where they are none."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def lost_records_payload(seq: int, key: str, detail: str, *, record: Mapping[str, Any]) -> Payload:
    """A range of records that expired before they were read: a payload without data, which becomes a row in quarantine.

    Args:
        key: names the range, for people and for the ledger.
    """
    return unreadable_payload(seq, key, b"", Reason(ReasonCode.RECORDS_LOST, "", detail), record=record)
