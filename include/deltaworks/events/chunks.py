"""Payloads, which a task parses, and chunks, the events that it converts to columns together.

An event whose processing raises an unexpected error goes to quarantine, and the stream continues. The quarantine
reason contains only the error's class, because its message may quote private values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import DeltaworksError
from deltaworks.events.budget import EventRun, event_count
from deltaworks.events.formats.json import Malformed
from deltaworks.events.reasons import ConversionError, Reason, ReasonCode, RejectedEvent

#: Position of an event in its payload, its value, and its bytes.
PositionedEvent = tuple[int, tuple[Any, bytes]]


def unexpected_error_reason(doing: str, kind: str) -> Reason:
    """Returns the quarantine reason for an error of class `kind` that was raised while `doing` something."""
    return Reason(ReasonCode.MALFORMED, "", f"{doing} failed: {kind}")


def number_events(frame: Callable[[], Iterable[tuple[Any, bytes]]], *, rest: bytes = b"") -> Iterator[PositionedEvent]:
    """Yields the events from `frame` with their positions, even if `frame` fails. A run has the position of its first
    event.

    Events before a failure are yielded normally. The rest of the payload is one `Malformed` event at the next position,
    so that parsing again yields the same events at the same positions.

    Args:
        rest: bytes of that `Malformed` event, for payloads that cannot be read again.

    Raises:
        ConversionError: nothing can be read; raised before the first event.
    """
    position = 0
    try:
        for value, raw in frame():
            yield position, (value, raw)
            position += event_count(value)
        return
    except Exception as error:  # readers may raise anything for corrupt bytes, MemoryError included
        if isinstance(error, ConversionError) and position == 0:
            raise
        failure = unexpected_error_reason("splitting", type(error).__name__).detail
        detail = error.detail if isinstance(error, ConversionError) else failure
    if position == 0:
        raise ConversionError(ReasonCode.MALFORMED, detail)
    yield position, (Malformed(rest, f"the rest is unreadable: {detail}"), rest)


#: Raw bytes of a full chunk. As Python objects its events take about ten times as much memory.
MAX_CHUNK_BYTES = 32 << 20
#: Weight of an event decoded into a struct, relative to an event held as Python objects. It is freed once its columns
#: are built.
_DECODED_EVENT_WEIGHT = 0.4
TableNames = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """One object or stream record to parse.

    Attributes:
        seq: sequence number in arrival order.
        data: content; None if it is not available.
        problem: why the content is not available.
        events: positions, values and bytes of single events, if only these are to be parsed.
        record: metadata of a stream record, which its events have in `_record`.
        refusal: the error if access to the object was denied.
        arrived_at_us: arrival time recorded by the object store or stream, which is the same for each read; None if
            unknown.
        lost_events: number of events that a payload without content stands for.
    """

    seq: int
    key: str
    data: bytes | None
    problem: Reason | None = None
    events: tuple[PositionedEvent, ...] | None = None
    record: Mapping[str, Any] | None = None
    refusal: DeltaworksError | None = None
    arrived_at_us: int | None = None
    lost_events: int = 1


#: Marker between payloads: the parser yields all rows of earlier payloads before it reads later ones.
END_OF_CHUNK = Payload(-1, "", None)


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Column values that all rows of a batch share.

    The age of events is relative to `arrived_at_us` if it is set (for events that are read again), else to
    `ingested_at_us`.
    """

    batch_id: int
    ingested_at_us: int
    fingerprint: str
    arrived_at_us: int | None = None


@dataclass(slots=True)
class Chunk:
    """Events that are converted together, in parallel lists with one entry per event.

    An event's index goes to `rows_by_table_set`, under the set of its tables. Events decoded into structs are in a
    `ColumnarChunk` instead.
    """

    events: list[Mapping[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    event_names: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    payloads: dict[int, Payload] = field(default_factory=dict)
    rows_by_table_set: dict[TableNames, list[int]] = field(default_factory=dict)
    decoded_count: int = 0
    #: Indexes of decoded events whose texts may contain emails or phone numbers, with the metadata of their records.
    scan_candidates: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    rejected: list[RejectedEvent] = field(default_factory=list)
    #: Number of `events` dropped during conversion.
    dropped_count: int = 0
    raw_bytes: int = 0

    def is_full(self, events: int) -> bool:
        """Returns whether the chunk is large enough to be converted."""
        discount = (1 - _DECODED_EVENT_WEIGHT) * self.decoded_count
        return len(self.events) - discount + len(self.rejected) >= events or self.raw_bytes >= MAX_CHUNK_BYTES

    def append(self, event: Mapping[str, Any], name: str, payload: Payload, position: int, raw: bytes) -> int:
        """Adds an event and returns its index. The caller assigns the tables."""
        self.events.append(event)
        self.raw_values.append(raw)
        self.event_names.append(name)
        self.seqs.append(payload.seq)
        self.payloads[payload.seq] = payload
        self.positions.append(position)
        return len(self.events) - 1

    def append_run(self, event: Mapping[str, Any], payload: Payload, position: int, run: EventRun) -> None:
        """Adds a run of decoded events, each with the placeholder `event`. The caller adds their names."""
        count = len(run)
        self.events += [event] * count
        self.raw_values += run.raws
        self.seqs += [payload.seq] * count
        self.payloads[payload.seq] = payload
        self.positions += range(position, position + count)
        self.raw_bytes += run.size
        self.decoded_count += count

    def rejected_event(self, index: int, reasons: Sequence[Reason]) -> RejectedEvent:
        """Returns the event at an index as a row for quarantine."""
        payload = self.payloads[self.seqs[index]]
        return rejected_event_of(
            payload, self.positions[index], self.raw_values[index], self.event_names[index], tuple(reasons)
        )

    def rows_by_table(self, order: Sequence[str]) -> dict[TableNames, list[int]]:
        """Returns the sorted event indexes of each table, with tables in the given order. Keys are tuples of
        one table."""
        rows: dict[str, list[int]] = {}
        for tables, indexes in self.rows_by_table_set.items():
            for table in tables:
                rows.setdefault(table, []).extend(indexes)
        return {(table,): sorted(rows[table]) for table in order if table in rows}

    def split(self) -> tuple[Chunk, Chunk]:
        """Splits the events into two chunks of about equal length, in order. Rejected events are in neither.

        The chunk must not have decoded events.
        """
        middle = len(self.events) // 2
        return self._slice(0, middle), self._slice(middle, len(self.events))

    def _slice(self, start: int, end: int) -> Chunk:
        return Chunk(
            events=self.events[start:end],
            raw_values=self.raw_values[start:end],
            event_names=self.event_names[start:end],
            seqs=self.seqs[start:end],
            positions=self.positions[start:end],
            payloads=self.payloads,
            rows_by_table_set={
                tables: indexes
                for tables, rows in self.rows_by_table_set.items()
                if (indexes := [row - start for row in rows if start <= row < end])
            },
        )


def rejected_event_of(
    payload: Payload,
    position: int,
    raw: bytes,
    event_name: str | None,
    reasons: tuple[Reason, ...],
    *,
    events: int = 1,
) -> RejectedEvent:
    """Returns an event of a payload, or a number of `events` that could not be told apart, as a row for quarantine."""
    return RejectedEvent(
        payload.seq,
        position,
        payload.key,
        raw,
        event_name,
        reasons,
        record=payload.record,
        arrived_at_us=payload.arrived_at_us,
        events=events,
    )
