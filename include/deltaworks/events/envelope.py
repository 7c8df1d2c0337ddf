"""Builds the envelope columns of every bronze table: event id, name, time, batch and position.

Events without the declared time or id, or with a time too far from their arrival, are rejected. If declared, the
arrival time replaces an unusable time. It is recorded by the object store or stream, never by a local clock. So an
event gets the same time each time it is read, also after a restart and in a reprocess or replay. Ids are texts
unchanged, numbers as they were sent, and digests of ids with several fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.chunks import Chunk
from deltaworks.events.columns import ConversionErrors, convert_column
from deltaworks.events.events import Path, is_valid_unicode, parent_objects, value_at
from deltaworks.events.formats.value_conversion import parse_text
from deltaworks.events.lossless_numbers import NumberLiteral, number_id_text
from deltaworks.events.reasons import ConversionError, Reason, ReasonCode
from deltaworks.events.table_columns import Reasons, add_errors, add_missing
from deltaworks.events.times import EARLIEST_US, INSTANT, LATEST_US
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import TEXT_FORMATS
from deltaworks.specs.table import ENVELOPE_COLUMNS
from deltaworks.specs.types import Primitive

if TYPE_CHECKING:
    from deltaworks.events.chunks import BatchMetadata

_DAY_US, _MINUTE_US = 86_400_000_000, 60_000_000
#: Path in the reason for events without a time field.
_ARRIVAL_PATH = "arrival"


class EventTimes:
    """Reads event times as a pipeline declares them. Stateless."""

    def __init__(self, spec: PipelineSpec) -> None:
        declared = spec.event.time
        self._paths = list(map(path_names, declared.path))
        self._path_text = ", ".join(declared.path)
        self._form = declared.time_format
        # Text formats have epochs as digits; parsing these as integers is fastest.
        self._as_text = spec.source.format in TEXT_FORMATS and declared.unit != "iso8601"
        self._arrival = declared.arrival
        self._max_age_days = declared.max_age_days
        self._max_future_minutes = declared.max_future_minutes

    def read(self, chunk: Chunk, stamp: BatchMetadata) -> tuple[pa.Array, Reasons, list[int]]:
        """Reads the times of all events of a chunk.

        Returns:
            The times; reasons for events without a usable time; and the indexes of events whose
            unusable time was replaced by their arrival time.
        """
        reasons: Reasons = {}
        if not self._paths:
            return self._arrival_times(chunk, range(len(chunk.events)), reasons), reasons, []
        times, errors = convert_column(self._values(chunk.events), Primitive("timestamp"), times=self._form)
        errors |= self.out_of_bounds(times, stamp)
        if not self._arrival:
            add_errors(reasons, errors, self._path_text)
            add_missing(reasons, times, errors, self._path_text)
            return times, reasons, []
        missing_rows = [index for index in pc.indices_nonzero(pc.is_null(times)).to_pylist() if index not in errors]
        if self._arrival == "when_missing":
            add_errors(reasons, errors, self._path_text)
            return self._with_arrival_times(chunk, times, missing_rows, reasons), reasons, []
        unusable_rows = sorted(errors)
        return self._with_arrival_times(chunk, times, [*missing_rows, *unusable_rows], reasons), reasons, unusable_rows

    def _values(self, events: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        values = join_time_parts([self._values_at(events, path) for path in self._paths])
        return [parse_text(value, Primitive("long")) for value in values] if self._as_text else values

    @staticmethod
    def _values_at(events: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> list[Any]:
        parents = parent_objects(events, path[:-1]) if len(path) > 1 else events
        return [parent.get(path[-1]) for parent in parents]

    def out_of_bounds(self, times: pa.Array, stamp: BatchMetadata) -> ConversionErrors:
        """Returns errors by index for events whose time is too far from their arrival."""
        errors: ConversionErrors = {}
        if self._max_age_days is None and self._max_future_minutes is None:
            return errors
        arrived = stamp.ingested_at_us if stamp.arrived_at_us is None else stamp.arrived_at_us
        micros = times.cast(pa.int64())
        limits = []
        if self._max_age_days is not None:
            oldest, limit = arrived - self._max_age_days * _DAY_US, f"more than {self._max_age_days} days old"
            limits.append((pc.less(micros, oldest), ReasonCode.TOO_OLD, limit))
        if self._max_future_minutes is not None:
            newest, limit = arrived + self._max_future_minutes * _MINUTE_US, f"{self._max_future_minutes} minutes ahead"
            limits.append((pc.greater(micros, newest), ReasonCode.TOO_FAR_IN_FUTURE, f"more than {limit}"))
        for is_out_of_bounds, code, limit in limits:
            for index in pc.indices_nonzero(is_out_of_bounds.fill_null(False)).to_pylist():
                errors[index] = ConversionError(code, f"{times[index].as_py().isoformat()} was {limit} on arrival")
        return errors

    def _with_arrival_times(self, chunk: Chunk, times: pa.Array, rows: list[int], reasons: Reasons) -> pa.Array:
        """Returns the times, with those of the given rows replaced by arrival times."""
        if not rows:
            return times
        micros = times.cast(pa.int64()).to_pylist()
        for row, arrived in zip(
            rows, self._arrival_times(chunk, rows, reasons).cast(pa.int64()).to_pylist(), strict=True
        ):
            micros[row] = arrived
        return pa.array(micros, pa.int64()).cast(INSTANT)

    def _arrival_times(self, chunk: Chunk, rows: range | list[int], reasons: Reasons) -> pa.Array:
        """Returns the arrival times of these rows; adds a reason for each row without one."""
        arrived = [chunk.payloads[chunk.seqs[row]].arrived_at_us for row in rows]
        usable = [at if at is not None and EARLIEST_US <= at <= LATEST_US else None for at in arrived]
        for row, at in zip(rows, usable, strict=True):
            if at is None:
                missing = Reason(ReasonCode.MISSING_REQUIRED, _ARRIVAL_PATH, "its arrival time was not recorded")
                reasons.setdefault(row, []).append(missing)
        return pa.array(usable, pa.int64()).cast(INSTANT)


def join_time_parts(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Returns the texts to parse as event times. Times in several fields, such as date and time, are joined."""
    return parts[0] if len(parts) == 1 else list(map(_join_parts, zip(*parts, strict=True)))


def _join_parts(parts: tuple[Any, ...]) -> Any:
    """Joins the texts of one event. Returns None if one is missing; a value that is not a text is returned and fails
    later.
    """
    if None in parts:
        return None
    non_texts = [part for part in parts if not isinstance(part, str)]
    return non_texts[0] if non_texts else " ".join(parts)


class EventIdReader:
    """Reads event ids: the value at one path, or a digest of the values at several paths.

    Different ids never become equal: an id that parsing as a double may have rounded is read again from the raw event.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.paths = tuple(map(path_names, spec.event.id))

    def read(
        self, events: Sequence[Mapping[str, Any]], load_lossless: Callable[[int], Any]
    ) -> tuple[list[str | None], ConversionErrors]:
        """Returns the id of each event, and errors by index.

        An id is None if a part is missing or no id is declared. Ids with invalid UTF-8 are returned unchanged;
        converting them to text fails later.

        Args:
            load_lossless: returns the event at an index with its numbers as literals, or None; called for ids that are
                doubles.

        Returns:
            Ids, and errors for numbers whose exact value is unknown; their id is None.
        """
        if not self.paths:
            return [None] * len(events), {}
        errors: ConversionErrors = {}
        parts = [self._texts(events, path, load_lossless, errors) for path in self.paths]
        if len(parts) == 1:
            return parts[0], errors
        return [_digest(texts) for texts in zip(*parts, strict=True)], errors

    @staticmethod
    def _texts(
        events: Sequence[Mapping[str, Any]], path: Path, load_lossless: Callable[[int], Any], errors: ConversionErrors
    ) -> list[str | None]:
        parents = parent_objects(events, path[:-1]) if len(path) > 1 else events
        values = [holder.get(path[-1]) for holder in parents]
        texts = [value if type(value) is str and value else _id_text(value) for value in values]
        # Loaded only if some id is not a text.
        for index, value in enumerate(values) if float in set(map(type, values)) else ():
            if type(value) is float:
                literal = value_at(load_lossless(index), path)
                texts[index] = number_id_text(literal, value) if type(literal) is NumberLiteral else None
                if texts[index] is None:
                    detail = f"{value!r} may have lost digits as a JSON number: send it as a string"
                    errors[index] = ConversionError(ReasonCode.OUT_OF_RANGE, detail)
        return texts


def _digest(texts: tuple[str | None, ...]) -> str | None:
    if None in texts:
        return None
    # Encoded as JSON, so ("a", "bc") and ("ab", "c") differ for any characters.
    try:
        return hashlib.blake2b(orjson.dumps(texts), digest_size=16).hexdigest()
    except TypeError:
        return next(text for text in texts if text is not None and not is_valid_unicode(text))


def _id_text(value: Any) -> str | None:
    if value is None or value == "" or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def unambiguous_ids(parts: Sequence[Sequence[Any]], count: int) -> list[str | None]:
    """Returns the ids of `count` events from the values of their id fields. Ids that only `EventIdReader` can read are
    None.
    """
    if not parts:
        return [None] * count
    texts = [_unambiguous_texts(values) for values in parts]
    return texts[0] if len(texts) == 1 else [_digest(event_texts) for event_texts in zip(*texts, strict=True)]


def _unambiguous_texts(values: Sequence[Any]) -> list[str | None]:
    if set(map(type, values)) == {str} and "" not in values:
        return list(values)
    return [
        value
        if type(value) is str and value
        else str(value)
        if type(value) is int and -(1 << 63) <= value < 1 << 64
        else None
        for value in values
    ]


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
