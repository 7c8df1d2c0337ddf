"""A bounded look at payloads: the shape of their events, and what of them could not be looked at.

What cannot be read is counted and skipped. The stream that comes to it quarantines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.column_types import Shape
from deltaworks.events.inference.declared_shapes import avro_shape, parquet_shape
from deltaworks.events.parse import Payload
from deltaworks.specs.sources.payload import TEXT_FORMATS, PayloadSpec

#: Keys of objects that a sample remembers; the counts are of all.
MAX_KEYS = 20


@dataclass(slots=True)
class Sample:
    """The shape of the events of some objects. `unusable` objects gave no event, `unread` values were none."""

    shape: Shape = field(default_factory=Shape)
    objects: int = 0
    unusable_objects: int = 0
    events: int = 0
    skipped_values: int = 0
    bytes: int = 0
    keys: list[str] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """What a version of a schema keeps of it."""
        counts = ("objects", "unusable", "events", "unread", "bytes")
        return {name: getattr(self, name) for name in counts} | {"keys": self.keys}


class Sampler:
    """Looks at payloads of one source. `typed`: look at what texts and values are; else they will all be texts."""

    def __init__(self, source: PayloadSpec, *, typed: bool) -> None:
        self._frame = create_framer(source)
        self._declared = {"parquet": parquet_shape, "avro": avro_shape}.get(source.format)
        self._of_text = source.format in TEXT_FORMATS
        self._max_event_bytes = source.max_event_bytes
        self._typed = typed

    @property
    def declares_columns(self) -> bool:
        """Whether objects of this form say themselves which columns they have."""
        return self._declared is not None

    def sample(self, payloads: Iterable[Payload], *, max_bytes: int) -> Sample:
        """Look at payloads until they are at an end, or have held `max_bytes`; at one in any case."""
        sample = Sample()
        for payload in payloads:
            self.add_payload(sample, payload)
            if sample.bytes >= max_bytes:
                break
        return sample

    def add_payload(self, sample: Sample, payload: Payload) -> None:
        """Take one payload into a sample."""
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
        """Take one event into a shape."""
        if self._of_text:
            shape.add_texts(event, typed=self._typed)
        else:
            shape.add_value(event)


def _add_declared(read: Callable[[bytes], tuple[Shape, int]], sample: Sample, data: bytes) -> None:
    """Take a file that declares its own types: `read` gives them and how many rows it has."""
    try:
        shape, rows = read(data)
    except Exception:  # a damaged file fails in whatever way its bytes lead the reader into
        return
    sample.shape.merge(shape)
    sample.events += max(1, rows)
