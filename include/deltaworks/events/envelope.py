"""Builds the envelope columns of every bronze table: event id, name, time, batch and position.

Events without the declared time or id, or with a time too far from their arrival, are rejected.
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
    from deltaworks.events.chunks import BatchMetadata


class EnvelopeBuilder:
    """Builds the envelope columns as a pipeline declares them. Stateless."""

    def __init__(self, spec: PipelineSpec, times: EventTimes, lossless_event: Callable[[bytes], Any]) -> None:
        """Creates a builder.

        Args:
            lossless_event: parses one event's bytes with its numbers as literals.
        """
        self._exact_event = lossless_event
        self._times = times
        self._ids = EventIdReader(spec)
        self._id_text = ", ".join(spec.event.id)

    def columns(self, chunk: Chunk, stamp: BatchMetadata) -> tuple[pa.Table, Reasons, list[int]]:
        """Builds the envelope of all events of a chunk.

        Returns:
            The columns; reasons for events without a time or id; and the indexes of events whose
            unusable time was replaced by their arrival time.
        """
        events = chunk.events
        times, reasons, unusable = self._times.read(chunk, stamp)
        texts, errors = self._ids.read(events, lambda index: self._exact_event(chunk.raw_values[index]))
        ids, unreadable = convert_column(texts, Primitive("string"))
        if self._ids.paths:
            errors |= unreadable
            add_errors(reasons, errors, self._id_text)
            add_missing(reasons, ids, errors, self._id_text)
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
    stamp: BatchMetadata, *, ids: pa.Array, names: pa.Array, times: pa.Array, seqs: pa.Array, positions: pa.Array
) -> list[pa.Array]:
    """Returns the envelope columns in order, including the batch's constant columns."""
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
