"""Samples payloads up to a size limit: collects the shape of their events, and counts unreadable parts.

Unreadable parts are skipped here; the stream will quarantine them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.chunks import Payload
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.column_types import Shape
from deltaworks.events.inference.declared_shapes import avro_shape, parquet_shape
from deltaworks.specs.sources.payload import TEXT_FORMATS, PayloadSpec

#: Maximum number of object keys stored per sample. Counts include all objects.
MAX_KEYS = 20


@dataclass(slots=True)
class Sample:
    """Shape of the events of the sampled objects.

    Objects without any event are counted in `unusable_objects`, values that are not events in `skipped_values`.
    """

    shape: Shape = field(default_factory=Shape)
    objects: int = 0
    unusable_objects: int = 0
    events: int = 0
    skipped_values: int = 0
    bytes: int = 0
    keys: list[str] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Returns the summary that is stored in a schema version."""
        counts = ("objects", "unusable_objects", "events", "skipped_values", "bytes")
        return {name: getattr(self, name) for name in counts} | {"keys": self.keys}


class Sampler:
    """Samples payloads of one source. Without `typed`, all columns are strings."""

    def __init__(self, source: PayloadSpec, *, typed: bool) -> None:
        self._frame = create_framer(source)
        self._declared = {"parquet": parquet_shape, "avro": avro_shape}.get(source.format)
        self._values_are_text = source.format in TEXT_FORMATS
        self._max_event_bytes = source.max_event_bytes
        self._typed = typed

    @property
    def declares_columns(self) -> bool:
        """Whether objects of this format have a schema."""
        return self._declared is not None

    def sample(self, payloads: Iterable[Payload], *, max_bytes: int) -> Sample:
        """Samples payloads until `max_bytes` were read; at least one payload."""
        sample = Sample()
        for payload in payloads:
            self.add_payload(sample, payload)
            if sample.bytes >= max_bytes:
                break
        return sample

    def add_payload(self, sample: Sample, payload: Payload) -> None:
        """Adds one payload to a sample."""
        sample.objects += 1
        if len(sample.keys) < MAX_KEYS:
            sample.keys.append(payload.key)
        data = payload.data or b""
        sample.bytes += len(data)
        events_before = sample.events
        try:
            if self._declared is not None:
                _add_declared(self._declared, sample, data)
            else:
                self._add_values(sample, data)
        except ConversionError:
            pass
        sample.unusable_objects += sample.events == events_before

    def _add_values(self, sample: Sample, data: bytes) -> None:
        for value, raw in self._frame(data):
            if not isinstance(value, dict) or len(raw) > self._max_event_bytes:
                sample.skipped_values += 1
                continue
            self.add_event(sample.shape, value)
            sample.events += 1

    def add_event(self, shape: Shape, event: Mapping[str, Any]) -> None:
        """Adds one event to a shape."""
        if self._values_are_text:
            shape.add_texts(event, typed=self._typed)
        else:
            shape.add_value(event)


def _add_declared(read: Callable[[bytes], tuple[Shape, int]], sample: Sample, data: bytes) -> None:
    """Adds a file that has a schema; `read` returns its shape and number of rows."""
    try:
        shape, rows = read(data)
    except Exception:  # a corrupt file may raise anything
        return
    sample.shape.merge(shape)
    sample.events += max(1, rows)
