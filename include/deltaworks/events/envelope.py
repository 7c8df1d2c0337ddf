"""The envelope columns that every bronze table has: an event's id, name and time, its batch and its place.

An event without the time or id that is declared, or whose time lies too far from its arrival, does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.events.chunks import Chunk
from deltaworks.events.columns import convert_column
from deltaworks.events.event_ids import EventIdReader
from deltaworks.events.event_times import EventTimes
from deltaworks.events.table_columns import Reasons, add_errors, add_missing
from deltaworks.events.times import INSTANT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import ENVELOPE_COLUMNS
from deltaworks.specs.types import Primitive

if TYPE_CHECKING:
    from deltaworks.events.parse import BatchStamp


class EnvelopeBuilder:
    """Makes the envelope of events as a pipeline declares it. Stateless once built."""

    def __init__(self, spec: PipelineSpec, times: EventTimes, lossless_event: Callable[[bytes], Any]) -> None:
        """As `spec` declares, its times by `times`.

        `lossless_event` reads the bytes of one event again with its numbers as they were sent.
        """
        self._exact_event = lossless_event
        self._times = times
        self._ids = EventIdReader(spec)
        self._id_text = ", ".join(spec.event.id)

    def columns(self, chunk: Chunk, stamp: BatchStamp) -> tuple[pa.Table, Reasons, list[int]]:
        """The envelope columns of all events of the chunk, the reasons of events without time or id, and the indexes
        of those that have the time they arrived at in place of one of no use."""
        events = chunk.events
        times, reasons, unusable = self._times.read(chunk, stamp)
        texts, misfits = self._ids.read(events, lambda index: self._exact_event(chunk.raw_values[index]))
        ids, unreadable = convert_column(texts, Primitive("string"))
        if self._ids.paths:
            misfits |= unreadable
            add_errors(reasons, misfits, self._id_text)
            add_missing(reasons, ids, misfits, self._id_text)
        arrays = envelope_arrays(
            stamp,
            ids=ids,
            names=pa.array(chunk.event_names, pa.string()),
            times=times,
            seqs=pa.array(chunk.seqs, pa.int64()),
            positions=pa.array(chunk.positions, pa.int64()),
        )
        names = [name for name, _ in ENVELOPE_COLUMNS]
        return pa.Table.from_arrays(arrays, names=names), reasons, unusable


def envelope_arrays(
    stamp: BatchStamp, *, ids: pa.Array, names: pa.Array, times: pa.Array, seqs: pa.Array, positions: pa.Array
) -> list[pa.Array]:
    """The envelope columns in order, with what their batch stamps on all events."""
    count = len(ids)
    return [
        ids,
        names,
        times,
        times.cast(pa.date32()),
        pa.repeat(pa.scalar(stamp.ingested_at_us, pa.int64()), count).cast(INSTANT),
        pa.repeat(pa.scalar(stamp.batch_id, pa.int64()), count),
        seqs,
        positions,
    ]
