"""What the present spec makes of quarantined rows: which of them land, in which tables, and which still do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from deltaworks.events.origins import RowKey, row_keys
from deltaworks.events.parse import BatchStamp, Parser
from deltaworks.events.reasons import QUARANTINE, WHOLE_OBJECT
from deltaworks.rework.quarantine.replay_payloads import ReplayPayloads, key_of


@dataclass(slots=True)
class ReplayRows:
    """The rows a slice of the quarantine becomes.

    `by_table` holds what lands, quarantine among it: events of a whole object that could not be read before.
    `landed` are the rows of the slice that are open no more, with the tables they went to; `rejected` those that still
    do not fit, with their reasons; `missing` those of which there is nothing to read, with the cause.
    """

    by_table: dict[str, list[pa.Table]] = field(default_factory=dict)
    landed: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    rejected: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def without(self, tables: Mapping[str, str]) -> None:
        """Leave out every event that belongs to one of these tables; each of them says why as `missing` does."""
        for table, cause in tables.items():
            blocked = {key for part in self.by_table.get(table, ()) for key in row_keys(part)}
            seqs = {seq for seq, position in self.landed if position == WHOLE_OBJECT}
            # An object lands as a whole or not at all, since it is one row.
            whole = {(seq, WHOLE_OBJECT) for seq, _ in blocked if seq in seqs}
            for key in blocked | whole:
                if self.landed.pop(key, None) is not None:
                    self.missing[key] = cause
            self._drop(blocked, {seq for seq, _ in whole})

    def _drop(self, keys: set[RowKey], seqs: set[int]) -> None:
        for name, parts in self.by_table.items():
            self.by_table[name] = [
                part.filter(pa.array([key not in keys and key[0] not in seqs for key in row_keys(part)], pa.bool_()))
                for part in parts
            ]


def replay_rows(
    parser: Parser, rows: Iterable[Mapping[str, Any]], payloads: ReplayPayloads, *, now_us: int, fingerprint: str
) -> ReplayRows:
    """Read the rows again. They keep their batch, their place and, for their age, the time they arrived at."""
    found = ReplayRows(missing=dict(payloads.missing))
    wanted = {key_of(row) for row in rows} - found.missing.keys()
    whole = {seq for seq, position in wanted if position == WHOLE_OBJECT}
    tables: dict[RowKey, list[str]] = {(seq, WHOLE_OBJECT): [] for seq in whole}
    for (batch_id, arrived_at_us), group in sorted(payloads.by_arrival.items()):
        stamp = BatchStamp(batch_id, now_us, fingerprint, arrived_at_us)
        for name, part in parser.parse(sorted(group, key=lambda payload: payload.seq), stamp):
            if name == QUARANTINE:
                _note_rejected(found, part, whole)
                continue
            found.by_table.setdefault(name, []).append(part)
            for key in row_keys(part):
                tables.setdefault(key if key in wanted else (key[0], WHOLE_OBJECT), []).append(name)
    for key, names in tables.items():
        if key in wanted and key not in found.rejected:
            found.landed[key] = tuple(sorted(set(names)))
    return found


def _note_rejected(found: ReplayRows, part: pa.Table, whole: set[int]) -> None:
    """A row that still does not fit stays as it is; an event of a whole object becomes a row of its own."""
    anew = []
    for key, reasons in zip(row_keys(part), part.column("reasons").to_pylist(), strict=True):
        is_new = key[0] in whole and key[1] != WHOLE_OBJECT
        anew.append(is_new)
        if not is_new:
            found.rejected[key] = tuple(reason["code"] for reason in reasons)
    if any(anew):
        found.by_table.setdefault(QUARANTINE, []).append(part.filter(pa.array(anew)))


def reasons_left(found: ReplayRows) -> Counter[str]:
    """Why rows still do not fit; a row counts once for each reason."""
    return Counter(code for codes in found.rejected.values() for code in set(codes))
