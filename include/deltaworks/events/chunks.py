"""Events on their way to rows: as many as a task converts at once, and parts of them that are converted apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltaworks.events.budget import EventRun
from deltaworks.events.reasons import Reason, RejectedEvent

if TYPE_CHECKING:
    from deltaworks.events.columnar_batches import DecodedEvents
    from deltaworks.events.parse import Payload

#: Bytes of events that are converted at once; in Python objects they take some ten times as much.
MAX_CHUNK_BYTES = 32 << 20
#: For how many events as objects a decoded one counts: it is let go once its columns are made.
_DECODED_EVENT_WEIGHT = 0.4
TableNames = tuple[str, ...]


@dataclass(slots=True)
class Chunk:
    """Events on their way: parallel lists, one entry an event, and the events of each set of tables by index.

    Events that were decoded into slots are in `decoded`, by their class, and in none of these sets.
    """

    events: list[Mapping[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    event_names: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    payloads: dict[int, Payload] = field(default_factory=dict)
    rows_by_table_set: dict[TableNames, list[int]] = field(default_factory=dict)
    decoded: dict[type, DecodedEvents] = field(default_factory=dict)
    decoded_count: int = 0
    #: Decoded events that are to be scanned for emails and phone numbers, with the records they came in.
    scan_candidates: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    rejected: list[RejectedEvent] = field(default_factory=list)
    #: How many of `events` turned out to be kept nowhere.
    dropped_count: int = 0
    raw_bytes: int = 0

    def is_full(self, events: int) -> bool:
        """Whether it holds as much as a task should convert at once."""
        spared = (1 - _DECODED_EVENT_WEIGHT) * self.decoded_count
        return len(self.events) - spared + len(self.rejected) >= events or self.raw_bytes >= MAX_CHUNK_BYTES

    def append(self, event: Mapping[str, Any], name: str, payload: Payload, position: int, raw: bytes) -> int:
        """Add an event, of no tables yet; its index."""
        self.events.append(event)
        self.raw_values.append(raw)
        self.event_names.append(name)
        self.seqs.append(payload.seq)
        self.payloads[payload.seq] = payload
        self.positions.append(position)
        return len(self.events) - 1

    def append_run(self, event: Mapping[str, Any], payload: Payload, position: int, run: EventRun) -> None:
        """Add a run of events, each of which is `event` to tables; their names are still to be added."""
        count = len(run)
        self.events += [event] * count
        self.raw_values += run.raws
        self.seqs += [payload.seq] * count
        self.payloads[payload.seq] = payload
        self.positions += range(position, position + count)
        self.raw_bytes += run.size
        self.decoded_count += count

    def rejected_event(self, index: int, reasons: Sequence[Reason]) -> RejectedEvent:
        """One of its events, for quarantine."""
        payload = self.payloads[self.seqs[index]]
        return rejected_event_of(
            payload, self.positions[index], self.raw_values[index], self.event_names[index], tuple(reasons)
        )

    def rows_by_table(self, order: Sequence[str]) -> dict[TableNames, list[int]]:
        """The events of each table, as sets of one table, in this order of tables."""
        rows: dict[str, list[int]] = {}
        for tables, some in self.rows_by_table_set.items():
            for table in tables:
                rows.setdefault(table, []).extend(some)
        return {(table,): sorted(rows[table]) for table in order if table in rows}

    def split(self) -> tuple[Chunk, Chunk]:
        """Its events in two chunks of about equal length, in their order; what was rejected is in neither.

        None of them may be decoded.
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
                tables: inside
                for tables, rows in self.rows_by_table_set.items()
                if (inside := [row - start for row in rows if start <= row < end])
            },
        )


def rejected_event_of(
    payload: Payload, position: int, raw: bytes, event_name: str | None, reasons: tuple[Reason, ...]
) -> RejectedEvent:
    """An event of a payload, for quarantine."""
    arrived_at_us = payload.arrived_at_us
    return RejectedEvent(
        payload.seq, position, payload.key, raw, event_name, reasons, record=payload.record, arrived_at_us=arrived_at_us
    )
