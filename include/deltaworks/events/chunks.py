"""Events on their way to rows: as many as a task converts at once, and halves of them where converting fails."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.events.reasons import Rejected

if TYPE_CHECKING:
    from deltaworks.events.parse import Payload

#: Bytes of events that are converted at once; in Python objects they take some ten times as much.
CHUNK_BYTES = 32 << 20


@dataclass(slots=True)
class Chunk:
    """Events on their way: parallel lists, one entry an event, and the events of each table by index."""

    events: list[dict[str, Any]] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    payloads: dict[int, Payload] = field(default_factory=dict)
    rows_by_table: dict[str, list[int]] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    raw_bytes: int = 0

    def is_full(self, events: int) -> bool:
        """Whether it holds as much as a task should convert at once."""
        return len(self.events) + len(self.rejected) >= events or self.raw_bytes >= CHUNK_BYTES

    def halves(self) -> tuple[Chunk, Chunk]:
        """Its events in two chunks of about equal length, in their order; what was rejected is in neither."""
        middle = len(self.events) // 2
        return self._part(0, middle), self._part(middle, len(self.events))

    def _part(self, start: int, end: int) -> Chunk:
        return Chunk(
            events=self.events[start:end],
            raws=self.raws[start:end],
            names=self.names[start:end],
            seqs=self.seqs[start:end],
            positions=self.positions[start:end],
            payloads=self.payloads,
            rows_by_table={
                table: inside
                for table, rows in self.rows_by_table.items()
                if (inside := [row - start for row in rows if start <= row < end])
            },
        )


def fitting_rows(table: pa.Table, rows: list[int], misfits: Collection[int]) -> tuple[pa.Table, list[int]]:
    """The rows of a table whose events are no misfits, and the indexes of these events."""
    if not misfits:
        return table, rows
    fits = [row not in misfits for row in rows]
    return table.filter(pa.array(fits)), list(compress(rows, fits))
