"""Finds the events of quarantined rows and parses them with the present spec.

A row contains its event if the stored value is complete and unchanged. Otherwise the landed object is read again,
provided that it has not been overwritten, and the event at the row's position is used if it still matches the row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.error_isolation import PositionedEvent
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ENTIRE_OBJECT, QUARANTINE_TABLE
from deltaworks.events.source_fields import RowKey, row_keys
from deltaworks.sources.objects.file_event_log import FileEventLog, event_time_us
from deltaworks.sources.objects.payloads import FileOpener, FileReference

Row = Mapping[str, Any]


@dataclass(slots=True)
class ReplayPayloads:
    """Payloads grouped by batch id and ingest time, and the reason for each row without a payload."""

    by_batch: dict[tuple[int, int], list[Payload]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def add(self, row: Row, payload: Payload) -> None:
        """Adds the payload of a row."""
        self.by_batch.setdefault((row["_batch_id"], row["ingested_at_us"]), []).append(payload)


def row_key(row: Row) -> RowKey:
    """Returns the key that identifies a row."""
    return row["_seq"], row["_position"]


class LandedObjects:
    """Reads the landed objects that rows came from."""

    def __init__(self, log: FileEventLog, opener: FileOpener) -> None:
        self._log = log
        self._opener = opener

    def payload(self, row: Row) -> Payload | str:
        """Returns the object of the row, or the reason why it cannot be read."""
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

    The parser frames payloads as in the stream. If the source keeps no objects, `landed` is None and only rows that
    contain their event can be replayed.
    """

    def __init__(self, parser: Parser, landed: LandedObjects | None) -> None:
        self._parser = parser
        self._landed = landed

    def find(self, rows: Iterable[Row]) -> ReplayPayloads:
        """Returns the payloads of these rows, which must be ordered by `_seq`."""
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
                payloads.add(
                    row,
                    Payload(
                        row["_seq"],
                        row["object_key"],
                        None,
                        events=(event,),
                        record=record,
                        arrived_at_us=row["arrived_at_us"],
                    ),
                )
        if rest:
            self._from_object(rest, payloads)

    def _from_row(self, row: Row) -> PositionedEvent | None:
        if not row["is_complete"] or row["_position"] == ENTIRE_OBJECT:
            return None
        raw = str(row["raw"]).encode()
        try:
            framed = list(self._parser.frame(Payload(row["_seq"], row["object_key"], raw)))
        except ConversionError:  # such as a CSV row without the header of its object
            return None
        # Outside its object the same text may be framed differently, for example an array that was a single event.
        return (row["_position"], framed[0][1]) if len(framed) == 1 and framed[0][1][1] == raw else None

    def _from_object(self, rows: Sequence[Row], payloads: ReplayPayloads) -> None:
        payload = self._landed.payload(rows[0]) if self._landed else "record_gone"
        if isinstance(payload, str):
            payloads.missing.update({row_key(row): payload for row in rows})
            return
        by_position = {row["_position"]: row for row in rows}
        entire_object_row = by_position.pop(ENTIRE_OBJECT, None)
        if entire_object_row is not None:
            payloads.add(entire_object_row, payload)
        for position, event in self._frame_or_nothing(payload) if by_position else ():
            row = by_position.get(position)
            if row is not None and _is_same_event(row, *self._parser.redaction.redact_raw(event[1])):
                del by_position[position]
                payloads.add(row, replace(payload, data=None, events=((position, event),)))
        payloads.missing.update({row_key(row): "event_not_found" for row in by_position.values()})

    def _frame_or_nothing(self, payload: Payload) -> Iterator[PositionedEvent]:
        try:
            yield from self._parser.frame(payload)
        except ConversionError:  # the object cannot be framed
            return


def _is_same_event(row: Row, raw: bytes, length: int) -> bool:
    """Returns whether an event of the object matches the row, as far as the row's value allows."""
    stored_text = str(row["raw"] or "")
    return length == row["raw_bytes"] and raw.decode("utf-8", "backslashreplace").startswith(
        stored_text.rstrip("\\x0123456789abcdef")
    )


@dataclass(slots=True)
class ReplayRows:
    """The result of parsing one slice again.

    - `by_table`: the rows to land, including quarantine rows for events of an object that was unreadable before.
    - `landed`: the rows that are closed now, with the tables that received them.
    - `rejected`: the rows that still do not fit, with the reasons.
    - `missing`: the rows without a readable payload, with the cause.
    """

    by_table: dict[str, list[pa.Table]] = field(default_factory=dict)
    landed: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    rejected: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def exclude_tables(self, tables: Mapping[str, str]) -> None:
        """Excludes every event that belongs to one of these tables.

        Args:
            tables: the cause by table name; it becomes the cause in `missing`.
        """
        for table, cause in tables.items():
            blocked = {key for part in self.by_table.get(table, ()) for key in row_keys(part)}
            seqs = {seq for seq, position in self.landed if position == ENTIRE_OBJECT}
            # An unreadable object is a single quarantined row, so all of its events land or none.
            entire_objects = {(seq, ENTIRE_OBJECT) for seq, _ in blocked if seq in seqs}
            for key in blocked | entire_objects:
                if self.landed.pop(key, None) is not None:
                    self.missing[key] = cause
            self._drop(blocked, {seq for seq, _ in entire_objects})

    def rejection_counts(self) -> Counter[str]:
        """Counts the reasons of rows that still do not fit; a row counts once per reason."""
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
    """Parses the rows again. They keep batch, position, arrival time, and the time they were first read."""
    result = ReplayRows(missing=dict(payloads.missing))
    readable = {row_key(row) for row in rows} - result.missing.keys()
    entire_object_seqs = {seq for seq, position in readable if position == ENTIRE_OBJECT}
    tables: dict[RowKey, list[str]] = {(seq, ENTIRE_OBJECT): [] for seq in entire_object_seqs}
    for (batch_id, read_at_us), group in sorted(payloads.by_batch.items()):
        stamp = BatchMetadata(batch_id, now_us, fingerprint, read_at_us)
        for name, part in parser.parse(sorted(group, key=lambda payload: payload.seq), stamp):
            if name == QUARANTINE_TABLE:
                _record_rejected(result, part, entire_object_seqs)
                continue
            result.by_table.setdefault(name, []).append(part)
            for key in row_keys(part):
                tables.setdefault(key if key in readable else (key[0], ENTIRE_OBJECT), []).append(name)
    for key, names in tables.items():
        if key in readable and key not in result.rejected:
            result.landed[key] = tuple(sorted(set(names)))
    return result


def _record_rejected(result: ReplayRows, part: pa.Table, complete_object_seqs: set[int]) -> None:
    """Keeps a quarantined row that is rejected again; adds a quarantine row per rejected event of an unreadable
    object."""
    new_rows = []
    for key, reasons in zip(row_keys(part), part.column("reasons").to_pylist(), strict=True):
        is_new = key[0] in complete_object_seqs and key[1] != ENTIRE_OBJECT
        new_rows.append(is_new)
        if not is_new:
            result.rejected[key] = tuple(reason["code"] for reason in reasons)
    if any(new_rows):
        result.by_table.setdefault(QUARANTINE_TABLE, []).append(part.filter(pa.array(new_rows)))
