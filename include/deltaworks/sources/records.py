"""Records of streams: their sequence numbers (`_seq`), payloads, and read statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deltaworks.control.clock import EARLIEST_US, LATEST_US, micros_to_iso
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Payload
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.record_sources import Compression

#: A `_seq` has 63 bits: 44 for the record within its partition or shard (17 trillion), 19 for the partition.
ORDINAL_BITS, PARTITION_NUMBER_BITS = 44, 19


def record_seq(partition: int, ordinal: int) -> int:
    """Returns the `_seq` of a record: unique in its stream and increasing with the ordinal.

    Args:
        partition: number of the partition or shard among all that the pipeline reads, from 0.
        ordinal: position of the record in the partition or shard, from 0.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, one of them is out of range.
    """
    if not (0 <= partition < 1 << PARTITION_NUMBER_BITS and 0 <= ordinal < 1 << ORDINAL_BITS):
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Record {ordinal} of partition or shard {partition} does not fit into a 64-bit `_seq`.",
            hint=(
                f"A pipeline reads at most {1 << PARTITION_NUMBER_BITS} partitions or shards of {1 << ORDINAL_BITS} "
                "records. Use a separate pipeline."
            ),
        )
    return partition << ORDINAL_BITS | ordinal


def record_time(micros: int) -> str:
    """Returns the time of a record, in microseconds since 1970, as ISO 8601.

    A time outside the years 1 to 9999 is given as the year 1. No column of a time accepts that year, so a row whose
    column reads the time is rejected as out of range.
    """
    return micros_to_iso(micros if EARLIEST_US <= micros <= LATEST_US else EARLIEST_US)


@dataclass(frozen=True, slots=True)
class Record:
    """A record that a task has read. `arrived_at_us` is when the stream accepted it, in epoch microseconds; 0 if
    unknown.
    """

    payload: Payload
    arrived_at_us: int


@dataclass(slots=True)
class ReadStatistics:
    """Statistics of a read: records, bytes, and the oldest and latest arrival times.

    Some streams store the producer's timestamp, which may have a wrong unit (year 55,000). `out_of_range_times` counts
    records whose time is no valid date.
    """

    records: int = 0
    bytes: int = 0
    oldest_us: int | None = None
    latest_us: int | None = None
    out_of_range_times: int = 0

    def count(self, records: Iterable[Record]) -> Iterator[Payload]:
        """Yields the payloads and counts them."""
        for record in records:
            self.records += 1
            self.bytes += len(record.payload.data or b"")
            at = record.arrived_at_us
            self.out_of_range_times += not EARLIEST_US <= at <= LATEST_US
            self.oldest_us = at if self.oldest_us is None else min(self.oldest_us, at)
            self.latest_us = at if self.latest_us is None else max(self.latest_us, at)
            yield record.payload

    def add(self, other: ReadStatistics) -> None:
        """Adds the statistics of another task."""
        self.records += other.records
        self.bytes += other.bytes
        self.out_of_range_times += other.out_of_range_times
        oldest = [at for at in (self.oldest_us, other.oldest_us) if at is not None]
        latest = [at for at in (self.latest_us, other.latest_us) if at is not None]
        self.oldest_us, self.latest_us = min(oldest, default=None), max(latest, default=None)

    def as_metadata(self) -> dict[str, Any]:
        """Returns the statistics as stored in the ledger; times out of range become the earliest or latest
        valid date."""
        facts: dict[str, Any] = {"records": self.records, "bytes": self.bytes}
        if self.oldest_us is not None and self.latest_us is not None:
            facts |= {
                "oldest_arrived_at": micros_to_iso(self.oldest_us),
                "newest_arrived_at": micros_to_iso(self.latest_us),
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
    """Returns the decompressed content of a record as a payload. If decompression fails, returns the compressed bytes
    with the reason.

    Args:
        arrived_at_us: time at which the stream accepted the record; None if the stream does not store it.
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
    """Returns the payload of an unreadable record. It has all bytes for quarantine, because no other place
    stores them."""
    return Payload(seq, key, value, reason, record=record or {}, arrived_at_us=arrived_at_us)


def decode_text(data: bytes | None) -> str | None:
    """Decodes UTF-8 and escapes invalid bytes. None stays None."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def lost_records_payload(seq: int, key: str, detail: str, *, record: Mapping[str, Any], records: int = 1) -> Payload:
    """Returns an empty payload for a range of records that expired before they were read. It becomes a row in
    quarantine.

    Args:
        key: name of the range for messages and the ledger.
        records: number of lost records, if it is known.
    """
    reason = Reason(ReasonCode.RECORDS_LOST, "", detail)
    return replace(unreadable_payload(seq, key, b"", reason, record=record), lost_events=records)
