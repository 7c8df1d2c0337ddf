"""Reads quarantined rows again: their payloads, and what the present spec makes of them.

A row contains its event where the value was neither cut nor changed. Otherwise the landed object is read again, if it
is still the one that was announced, and the event at the row's place is taken if it is still the same one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.error_isolation import PositionedEvent
from deltaworks.events.parse import BatchStamp, Parser, Payload
from deltaworks.events.reasons import ENTIRE_OBJECT, QUARANTINE_TABLE
from deltaworks.events.source_fields import RowKey, row_keys
from deltaworks.sources.objects.file_event_log import FileEventLog, event_time_us
from deltaworks.sources.objects.payloads import FileOpener, FileReference

_TRUNCATED_CHARACTER = re.compile(r"(?:\\x[0-9a-f]{2}){1,3}$")
Row = Mapping[str, Any]


@dataclass(slots=True)
class ReplayPayloads:
    """Payloads by the batch of their rows and when it was read, and why rows have none."""

    by_batch: dict[tuple[int, int], list[Payload]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def add(self, row: Row, payload: Payload) -> None:
        """Take a payload; rows of one batch are stamped alike."""
        self.by_batch.setdefault((row["_batch_id"], row["ingested_at_us"]), []).append(payload)


def row_key(row: Row) -> RowKey:
    """What identifies a row."""
    return row["_seq"], row["_position"]


class LandedObjects:
    """The objects that rows came in."""

    def __init__(self, log: FileEventLog, opener: FileOpener) -> None:
        self._log = log
        self._opener = opener

    def arrived_at_us(self, row: Row) -> int | None:
        """When the object a row came in arrived; None where its file event is gone."""
        event = self._event(row)
        return None if event is None else event_time_us(event["event_time"])

    def payload(self, row: Row) -> Payload | str:
        """The object a row came in, or why it cannot be had."""
        event = self._event(row)
        if event is None:
            return "file_event_missing"
        made_at = event_time_us(event["event_time"])
        payload = self._opener(FileReference(row["_seq"], event["key"], event["etag"], event["version_id"], made_at))
        if payload.data is None:
            return str(payload.problem.code) if payload.problem else "object_unreadable"
        return payload

    def _event(self, row: Row) -> Row | None:
        seq = row["_seq"]
        columns = ["seq", "key", "etag", "version_id", "event_time"]
        event = next(iter(self._log.read(seq - 1, seq, columns=columns).to_pylist()), None)
        return event if event is not None and event["key"] == row["object_key"] else None


class PayloadFinder:
    """Finds the payloads of quarantined rows.

    `parser` frames them as the stream does. `landed` is None for a source that keeps no objects: only what its rows
    contain can be read again.
    """

    def __init__(self, parser: Parser, landed: LandedObjects | None) -> None:
        self._parser = parser
        self._landed = landed

    def find(self, rows: Iterable[Row]) -> ReplayPayloads:
        """The payloads of these rows, which are in the order of their `_seq`."""
        payloads = ReplayPayloads()
        for _, group in groupby(rows, key=lambda row: row["_seq"]):
            self._find_in_object(list(group), payloads)
        return payloads

    def _find_in_object(self, rows: Sequence[Row], payloads: ReplayPayloads) -> None:
        rest = []
        for row in rows:
            event = self._from_row(row)
            if event is None:
                rest.append(row)
            else:
                record = json.loads(row["record"]) if row["record"] else None
                read = Payload(row["_seq"], row["object_key"], None, events=(event,), record=record)
                payloads.add(row, replace(read, arrived_at_us=self._arrived_at_us(row)))
        if rest:
            self._from_object(rest, payloads)

    def _arrived_at_us(self, row: Row) -> int | None:
        """When the event of a row arrived, as the row has it. One of an earlier release does not: then its file event
        does, and of a record there is only when its batch was read."""
        arrived: int | None = row["arrived_at_us"]
        if arrived is None and self._landed is None:
            arrived = row["ingested_at_us"]
        return self._landed.arrived_at_us(row) if arrived is None and self._landed is not None else arrived

    def _from_row(self, row: Row) -> PositionedEvent | None:
        if not row["is_complete"] or row["_position"] == ENTIRE_OBJECT:
            return None
        raw = str(row["raw"]).encode()
        try:
            framed = list(self._parser.frame(Payload(row["_seq"], row["object_key"], raw)))
        except ConversionError:  # it has no header of its own
            return None
        # An array that was itself one event, and its like, read as something else when they stand alone.
        return (row["_position"], framed[0][1]) if len(framed) == 1 and framed[0][1][1] == raw else None

    def _from_object(self, rows: Sequence[Row], payloads: ReplayPayloads) -> None:
        payload = self._landed.payload(rows[0]) if self._landed else "record_gone"
        if isinstance(payload, str):
            payloads.missing.update({row_key(row): payload for row in rows})
            return
        by_position = {row["_position"]: row for row in rows}
        whole = by_position.pop(ENTIRE_OBJECT, None)
        if whole is not None:
            payloads.add(whole, payload)
        for position, event in self._frame_or_nothing(payload) if by_position else ():
            row = by_position.get(position)
            if row is not None and _is_same_event(row, *self._parser.redaction.redact_raw(event[1])):
                del by_position[position]
                payloads.add(row, replace(payload, data=None, events=((position, event),)))
        payloads.missing.update({row_key(row): "event_not_found" for row in by_position.values()})

    def _frame_or_nothing(self, payload: Payload) -> Iterator[PositionedEvent]:
        try:
            yield from self._parser.frame(payload)
        except ConversionError:  # nothing of it can be read
            return


def _is_same_event(row: Row, raw: bytes, length: int) -> bool:
    """Whether an event of the object is the one the row was made of, as far as the row tells."""
    kept = str(row["raw"] or "")
    return length == row["raw_bytes"] and raw.decode("utf-8", "backslashreplace").startswith(
        kept.rstrip("\\x0123456789abcdef")
    )


@dataclass(slots=True)
class ReplayRows:
    """The rows a slice of the quarantine becomes.

    `by_table` holds what lands, quarantine among it: events of a whole object that could not be read before.
    `landed` are the rows of the slice that are no longer open, with the tables they went to; `rejected` those that
    still do not fit, with their reasons; `missing` those whose payload cannot be read, with the cause.
    """

    by_table: dict[str, list[pa.Table]] = field(default_factory=dict)
    landed: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    rejected: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def exclude_tables(self, tables: Mapping[str, str]) -> None:
        """Leave out every event that belongs to one of these tables, whose values are causes as in `missing`."""
        for table, cause in tables.items():
            blocked = {key for part in self.by_table.get(table, ()) for key in row_keys(part)}
            seqs = {seq for seq, position in self.landed if position == ENTIRE_OBJECT}
            # An object lands as a whole or not at all, since it is one row.
            whole = {(seq, ENTIRE_OBJECT) for seq, _ in blocked if seq in seqs}
            for key in blocked | whole:
                if self.landed.pop(key, None) is not None:
                    self.missing[key] = cause
            self._drop(blocked, {seq for seq, _ in whole})

    def rejection_counts(self) -> Counter[str]:
        """Why rows still do not fit; a row counts once for each reason."""
        return Counter(code for codes in self.rejected.values() for code in set(codes))

    def _drop(self, keys: set[RowKey], seqs: set[int]) -> None:
        for name, parts in self.by_table.items():
            self.by_table[name] = [
                part.filter(pa.array([key not in keys and key[0] not in seqs for key in row_keys(part)], pa.bool_()))
                for part in parts
            ]


def replay_rows(
    parser: Parser, rows: Iterable[Mapping[str, Any]], payloads: ReplayPayloads, *, now_us: int, fingerprint: str
) -> ReplayRows:
    """Read the rows again. They keep their batch, their place, when they arrived and, for their age, when they were
    read first."""
    result = ReplayRows(missing=dict(payloads.missing))
    readable = {row_key(row) for row in rows} - result.missing.keys()
    whole = {seq for seq, position in readable if position == ENTIRE_OBJECT}
    tables: dict[RowKey, list[str]] = {(seq, ENTIRE_OBJECT): [] for seq in whole}
    for (batch_id, read_at_us), group in sorted(payloads.by_batch.items()):
        stamp = BatchStamp(batch_id, now_us, fingerprint, read_at_us)
        for name, part in parser.parse(sorted(group, key=lambda payload: payload.seq), stamp):
            if name == QUARANTINE_TABLE:
                _record_rejected(result, part, whole)
                continue
            result.by_table.setdefault(name, []).append(part)
            for key in row_keys(part):
                tables.setdefault(key if key in readable else (key[0], ENTIRE_OBJECT), []).append(name)
    for key, names in tables.items():
        if key in readable and key not in result.rejected:
            result.landed[key] = tuple(sorted(set(names)))
    return result


def _record_rejected(result: ReplayRows, part: pa.Table, whole: set[int]) -> None:
    """A row that still does not fit stays as it is; an event of a whole object becomes a row of its own."""
    new_rows = []
    for key, reasons in zip(row_keys(part), part.column("reasons").to_pylist(), strict=True):
        is_new = key[0] in whole and key[1] != ENTIRE_OBJECT
        new_rows.append(is_new)
        if not is_new:
            result.rejected[key] = tuple(reason["code"] for reason in reasons)
    if any(new_rows):
        result.by_table.setdefault(QUARANTINE_TABLE, []).append(part.filter(pa.array(new_rows)))
