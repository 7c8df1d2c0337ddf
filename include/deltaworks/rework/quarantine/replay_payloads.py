"""The payloads of quarantined rows: from the row itself, or from the landed object where the row is not whole.

A row gives its event back where its value was neither cut nor changed. Otherwise the object is read again, if it is
still the one that was announced, and the event at the row's place is taken where it is still the same one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from deltaworks.events.columns import Misfit
from deltaworks.events.origins import RowKey
from deltaworks.events.parse import Framed, Parser, Payload
from deltaworks.events.reasons import WHOLE_OBJECT
from deltaworks.sources.objects.log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener, FileReference

_CUT_CHARACTER = re.compile(r"(?:\\x[0-9a-f]{2}){1,3}$")
Row = Mapping[str, Any]


@dataclass(slots=True)
class ReplayPayloads:
    """Payloads by the arrival of their rows, and why rows have none."""

    by_arrival: dict[tuple[int, int], list[Payload]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def add(self, row: Row, payload: Payload) -> None:
        """Take a payload; rows of one batch are stamped alike."""
        self.by_arrival.setdefault((row["_batch_id"], row["arrived_at_us"]), []).append(payload)


def key_of(row: Row) -> RowKey:
    """What identifies a row."""
    return row["_seq"], row["_position"]


class LandedObjects:
    """The objects that rows came in."""

    def __init__(self, log: FileEventLog, opener: FileOpener) -> None:
        self._log = log
        self._opener = opener

    def payload(self, row: Row) -> Payload | str:
        """The object a row came in, or why it cannot be had."""
        seq = row["_seq"]
        events = self._log.read(seq - 1, seq, columns=["seq", "key", "etag", "version_id"]).to_pylist()
        if not events or events[0]["key"] != row["object_key"]:
            return "file_event_missing"
        payload = self._opener(FileReference(seq, events[0]["key"], events[0]["etag"], events[0]["version_id"]))
        if payload.data is None:
            return str(payload.problem.code) if payload.problem else "object_unreadable"
        return payload


class PayloadFinder:
    """Finds the payloads of quarantined rows.

    `parser` frames them as the stream does. `landed` is None for a source that keeps no objects: its rows have what was
    kept of them, and nothing else.
    """

    def __init__(self, parser: Parser, landed: LandedObjects | None) -> None:
        self._parser = parser
        self._landed = landed

    def find(self, rows: Iterable[Row]) -> ReplayPayloads:
        """The payloads of these rows, which are in the order of their `_seq`."""
        found = ReplayPayloads()
        for _, group in groupby(rows, key=lambda row: row["_seq"]):
            self._of_object(list(group), found)
        return found

    def _of_object(self, rows: Sequence[Row], found: ReplayPayloads) -> None:
        left = []
        for row in rows:
            event = self._from_row(row)
            if event is None:
                left.append(row)
            else:
                record = json.loads(row["record"]) if row["record"] else None
                found.add(row, Payload(row["_seq"], row["object_key"], None, events=(event,), record=record))
        if left:
            self._from_object(left, found)

    def _from_row(self, row: Row) -> Framed | None:
        if not row["is_complete"] or row["_position"] == WHOLE_OBJECT:
            return None
        raw = str(row["raw"]).encode()
        try:
            framed = list(self._parser.framed(Payload(row["_seq"], row["object_key"], raw)))
        except Misfit:  # it has no header of its own
            return None
        # An array that was itself one event, and its like, read as something else when they stand alone.
        return (row["_position"], framed[0][1]) if len(framed) == 1 and framed[0][1][1] == raw else None

    def _from_object(self, rows: Sequence[Row], found: ReplayPayloads) -> None:
        payload = self._landed.payload(rows[0]) if self._landed else "record_gone"
        if isinstance(payload, str):
            found.missing.update({key_of(row): payload for row in rows})
            return
        by_position = {row["_position"]: row for row in rows}
        whole = by_position.pop(WHOLE_OBJECT, None)
        if whole is not None:
            found.add(whole, payload)
        for position, event in self._framed(payload) if by_position else ():
            row = by_position.get(position)
            if row is not None and _is_same(row, event[1]):
                del by_position[position]
                found.add(row, Payload(payload.seq, payload.key, None, events=((position, event),)))
        found.missing.update({key_of(row): "event_not_found" for row in by_position.values()})

    def _framed(self, payload: Payload) -> Iterable[Framed]:
        try:
            return self._parser.framed(payload)
        except Misfit:
            return ()


def _is_same(row: Row, raw: bytes) -> bool:
    """Whether an event of the object is the one the row was made of, as far as the row tells."""
    kept = str(row["raw"] or "")
    return len(raw) == row["raw_bytes"] and raw.decode("utf-8", "backslashreplace").startswith(
        kept.rstrip("\\x0123456789abcdef")
    )
