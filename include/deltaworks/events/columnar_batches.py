"""Converts a chunk's decoded events to columns, one event type at a time.

Columns are built for a few hundred events at a time, while the events are in the CPU cache; then the events are freed.
Events that cannot be converted with certainty get no row here; the row parser reads them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from deltaworks.events.chunks import BatchMetadata, Chunk
from deltaworks.events.columnar_plan import REDACTION_COUNTS, EventPlan
from deltaworks.events.columnar_redaction import sum_counts
from deltaworks.events.conversion import ChunkConverter, ConvertedChunk, RowIndexes
from deltaworks.events.envelope import envelope_arrays

#: Events that are converted together.
_BLOCK_EVENTS = 256
#: Placeholder for a decoded event in `Chunk.events`. It is empty, because tables store no undeclared fields of such
#: events.
EMPTY_EVENT: Mapping[str, Any] = {}


@dataclass(slots=True)
class DecodedEvents:
    """Events of a chunk that were decoded with the same column plan, with their indexes in the chunk.

    Args:
        arrival_ms: converts a payload's arrival time to the arrival time of its events in milliseconds.
        fallback_rows: indexes of events left to the row parser.
        opted_out_rows: indexes of events to drop because their subject has opted out.
    """

    plan: EventPlan
    chunk: Chunk
    arrival_ms: Callable[[int | None], int]
    fallback_rows: list[int] = field(default_factory=list)
    opted_out_rows: list[int] = field(default_factory=list)
    _events: list[Any] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _blocks: list[tuple[RowIndexes, dict[Any, pa.Array]]] = field(default_factory=list)

    def append(self, event: Any, row: int) -> None:
        """Adds an event with its index in the chunk; indexes must increase."""
        self._events.append(event)
        self._rows.append(row)
        if len(self._rows) >= _BLOCK_EVENTS:
            self._convert()

    def columns(self) -> tuple[RowIndexes, dict[Any, pa.Array]] | None:
        """Returns the indexes and columns of the converted events; None if there are none. See
        `EventPlan.to_arrays`."""
        if self._rows:
            self._convert()
        if not self._blocks:
            return None
        if len(self._blocks) == 1:
            return self._blocks[0]
        rows = np.concatenate([indexes for indexes, _ in self._blocks])
        keys = self._blocks[0][1]
        return rows, {key: pa.concat_arrays([arrays[key] for _, arrays in self._blocks]) for key in keys}

    def _convert(self) -> None:
        events, rows = self._events, np.array(self._rows, np.int64)
        self._events, self._rows = [], []
        scan_candidates = self.chunk.scan_candidates
        candidates = (
            {index: scan_candidates[row] for index, row in enumerate(rows.tolist()) if row in scan_candidates}
            if scan_candidates
            else {}
        )
        try:
            planned = self.plan.to_arrays(events, partial(self._arrival_times_ms, rows), candidates)
        except Exception:  # the row parser reads these events again and reports which one fails
            self.fallback_rows += rows.tolist()
            return
        arrays = planned.columns
        self.opted_out_rows += rows[list(planned.opted_out_rows)].tolist() if planned.opted_out_rows else []
        if planned.fallback_rows or planned.opted_out_rows:
            self.fallback_rows += rows[list(planned.fallback_rows)].tolist()
            rows, arrays = _drop_indexes(rows, arrays, planned.fallback_rows | planned.opted_out_rows)
        if len(rows):
            self._blocks.append((rows, arrays))

    def _arrival_times_ms(self, rows: RowIndexes) -> list[int]:
        seqs, payloads = self.chunk.seqs, self.chunk.payloads
        row_seqs = [seqs[row] for row in rows.tolist()]
        arrival_by_seq = {seq: self.arrival_ms(payloads[seq].arrived_at_us) for seq in set(row_seqs)}
        return [arrival_by_seq[seq] for seq in row_seqs]

    def exclude(
        self, rows: RowIndexes, arrays: dict[Any, pa.Array], indexes: set[int]
    ) -> tuple[RowIndexes, dict[Any, pa.Array]]:
        """Returns rows and columns without the given indexes, whose events are left to the row parser."""
        self.fallback_rows += rows[list(indexes)].tolist()
        return _drop_indexes(rows, arrays, indexes)


@dataclass(slots=True)
class ColumnarChunk(Chunk):
    """A chunk that may also have events decoded into structs, in `decoded` by struct class."""

    decoded: dict[type, DecodedEvents] = field(default_factory=dict)


def _drop_indexes(
    rows: RowIndexes, arrays: dict[Any, pa.Array], indexes: set[int]
) -> tuple[RowIndexes, dict[Any, pa.Array]]:
    keeps = np.ones(len(rows), np.bool_)
    keeps[list(indexes)] = False
    mask = pa.array(keeps)
    return rows[keeps], {key: array.filter(mask) for key, array in arrays.items()}


def convert_by_columns(
    conversion: ChunkConverter,
    chunk: ColumnarChunk,
    stamp: BatchMetadata,
    to_row_chunk: Callable[[Chunk, RowIndexes], tuple[Chunk, RowIndexes]],
) -> ConvertedChunk:
    """Converts a chunk in which some events are decoded: these by columns, the others by the row parser.

    Args:
        to_row_chunk: returns a new chunk with the given events as Python objects, and their indexes. Unreadable events
            are in its `rejected`.
    """
    tables = _TableParts(conversion, chunk, stamp)
    fallback = [row for rows in chunk.rows_by_table_set.values() for row in rows]
    redaction_counts, opted_out = Counter[str](), list[int]()
    for decoded in chunk.decoded.values():
        columns = decoded.columns()
        if columns is not None:
            rows, arrays = columns
            out_of_bounds = conversion.times.out_of_bounds(arrays["time"], stamp)
            if out_of_bounds:
                rows, arrays = decoded.exclude(rows, arrays, set(out_of_bounds))
            if len(rows):
                tables.add(decoded.plan, rows, arrays)
            if REDACTION_COUNTS in arrays:
                redaction_counts += sum_counts(arrays[REDACTION_COUNTS])
        fallback += decoded.fallback_rows
        opted_out += decoded.opted_out_rows
    redaction_counts += Counter(opted_out=len(opted_out))
    chunk.dropped_count = len(opted_out)
    if not fallback:
        parts, columnar_count = conversion.merge_in_order(tables.parts), len(chunk.events) - len(opted_out)
        return ConvertedChunk(
            parts, columnar_count=columnar_count, redaction_counts=redaction_counts, opted_out_rows=opted_out
        )
    row_chunk, rows = to_row_chunk(chunk, np.sort(np.array(fallback, np.int64)))
    for row, event in zip(rows.tolist(), row_chunk.events, strict=True):
        chunk.events[row] = event
    chunk.dropped_count += len(fallback) - len(row_chunk.events) - len(row_chunk.rejected)
    converted = conversion.convert_by_rows(row_chunk, stamp)
    for name, (indexes, table) in converted.tables.items():
        tables.parts.setdefault(name, []).append((rows[indexes], table))
    return ConvertedChunk(
        conversion.merge_in_order(tables.parts),
        {int(rows[row]): reasons for row, reasons in converted.reasons.items()},
        [int(rows[row]) for row in converted.unusable_time_rows],
        row_chunk.rejected,
        len(chunk.events) - len(fallback) - len(opted_out),
        redaction_counts,
        opted_out,
    )


class _TableParts:
    """Collects the rows of each table from decoded events, one part per plan."""

    def __init__(self, conversion: ChunkConverter, chunk: Chunk, stamp: BatchMetadata) -> None:
        self.parts: dict[str, list[tuple[RowIndexes, pa.Table]]] = {}
        self._columns = conversion.columns
        self._stamp = stamp
        self._seqs, self._positions = np.array(chunk.seqs, np.int64), np.array(chunk.positions, np.int64)

    def add(self, plan: EventPlan, rows: RowIndexes, arrays: Mapping[Any, pa.Array]) -> None:
        """Adds the rows for all tables of a plan. `arrays` come from `EventPlan.to_arrays`."""
        envelope = envelope_arrays(
            self._stamp,
            ids=arrays["id"],
            names=pa.repeat(pa.scalar(plan.name, pa.string()), len(rows)),
            times=arrays["time"],
            seqs=pa.array(self._seqs[rows]),
            positions=pa.array(self._positions[rows]),
        )
        for name in plan.tables:
            columns = self._columns[name]
            declared = [arrays[item.key] for item in columns.columns]
            table = pa.Table.from_arrays([*envelope, *declared], schema=columns.schema)
            self.parts.setdefault(name, []).append((rows, table))
