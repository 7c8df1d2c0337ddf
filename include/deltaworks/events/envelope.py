"""The envelope columns that every bronze table has: an event's id, name and time, its batch and its place.

An event without the time or id that is declared, or whose time lies too far from its arrival, does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.chunks import Chunk
from deltaworks.events.columns import column
from deltaworks.events.events import IdReader, holders
from deltaworks.events.formats.values import from_text
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.events.table_columns import Reasons, note, note_missing
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.payload import TEXT_FORMATS
from deltaworks.specs.table import ENVELOPE_COLUMNS
from deltaworks.specs.types import Primitive

if TYPE_CHECKING:
    from deltaworks.events.parse import BatchStamp

_INSTANT = pa.timestamp("us", tz="UTC")
_DAY_US, _MINUTE_US = 86_400_000_000, 60_000_000


class Envelope:
    """Makes the envelope of events as a pipeline declares it. Stateless once built."""

    def __init__(self, spec: PipelineSpec, exact_event: Callable[[bytes], Any]) -> None:
        """As `spec` declares; `exact_event` reads the bytes of one event again with its numbers as they were sent."""
        self._exact_event = exact_event
        # In text an epoch is digits, and digits are read fastest as numbers.
        self._times_as_text = spec.source.format in TEXT_FORMATS and spec.event.time.unit != "iso8601"
        self._ids = IdReader(spec)
        self._id_text = ", ".join(spec.event.id)
        self._time_path = tuple(spec.event.time.path.split("."))
        self._time_text = spec.event.time.path
        self._time_unit = spec.event.time.unit
        self._max_age_days = spec.event.time.max_age_days
        self._max_future_minutes = spec.event.time.max_future_minutes

    def columns(self, chunk: Chunk, stamp: BatchStamp) -> tuple[pa.Table, Reasons]:
        """The envelope columns of all events of the chunk, and the reasons of events without time or id."""
        reasons: Reasons = {}
        events = chunk.events
        parents = holders(events, self._time_path[:-1]) if len(self._time_path) > 1 else events
        values = [parent.get(self._time_path[-1]) for parent in parents]
        if self._times_as_text:
            values = [from_text(value, Primitive("long")) for value in values]
        times, misfits = column(values, Primitive("timestamp"), unit=self._time_unit)
        note(reasons, misfits, self._time_text)
        note_missing(reasons, times, misfits, self._time_text)
        self._note_age(reasons, times, stamp)
        texts, misfits = self._ids.read(events, lambda index: self._exact_event(chunk.raws[index]))
        ids, unreadable = column(texts, Primitive("string"))
        if self._ids.paths:
            misfits |= unreadable
            note(reasons, misfits, self._id_text)
            note_missing(reasons, ids, misfits, self._id_text)
        count = len(events)
        arrays = [
            ids,
            pa.array(chunk.names, pa.string()),
            times,
            times.cast(pa.date32()),
            pa.repeat(pa.scalar(stamp.ingested_at_us, pa.int64()), count).cast(_INSTANT),
            pa.repeat(pa.scalar(stamp.batch_id, pa.int64()), count),
            pa.array(chunk.seqs, pa.int64()),
            pa.array(chunk.positions, pa.int64()),
        ]
        return pa.Table.from_arrays(arrays, names=[name for name, _ in ENVELOPE_COLUMNS]), reasons

    def _note_age(self, reasons: Reasons, times: pa.Array, stamp: BatchStamp) -> None:
        """The reasons of events whose time lies further from their arrival than is declared."""
        if self._max_age_days is None and self._max_future_minutes is None:
            return
        arrived = stamp.ingested_at_us if stamp.arrived_at_us is None else stamp.arrived_at_us
        micros = times.cast(pa.int64())
        limits = []
        if self._max_age_days is not None:
            oldest, limit = arrived - self._max_age_days * _DAY_US, f"more than {self._max_age_days} days old"
            limits.append((pc.less(micros, oldest), ReasonCode.TOO_OLD, limit))
        if self._max_future_minutes is not None:
            newest, limit = arrived + self._max_future_minutes * _MINUTE_US, f"{self._max_future_minutes} minutes ahead"
            limits.append((pc.greater(micros, newest), ReasonCode.TOO_FAR_IN_FUTURE, f"more than {limit}"))
        for beyond, code, limit in limits:
            for index in pc.indices_nonzero(beyond.fill_null(False)).to_pylist():
                detail = f"{times[index].as_py().isoformat()} was {limit} on arrival"
                reasons.setdefault(index, []).append(Reason(code, self._time_text, detail))
