"""A bounded look at payloads: the shape of their events, and what of them could not be looked at.

What cannot be read is counted and skipped. The stream that comes to it quarantines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.registry import framer
from deltaworks.events.inference.column_types import Shape
from deltaworks.events.inference.declared_shapes import avro_shape, parquet_shape
from deltaworks.events.parse import Payload
from deltaworks.specs.sources.payload import TEXT_FORMATS, PayloadSpec

#: Keys of objects that a sample remembers; the counts are of all.
MOST_KEYS = 20


@dataclass(slots=True)
class Sample:
    """The shape of the events of some objects. `unusable` objects gave no event, `unread` values were none."""

    shape: Shape = field(default_factory=Shape)
    objects: int = 0
    unusable: int = 0
    events: int = 0
    unread: int = 0
    bytes: int = 0
    keys: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """What a version of a schema keeps of it."""
        counts = ("objects", "unusable", "events", "unread", "bytes")
        return {name: getattr(self, name) for name in counts} | {"keys": self.keys}


class Sampler:
    """Looks at payloads of one source. `typed`: look at what texts and values are; else they will all be texts."""

    def __init__(self, source: PayloadSpec, *, typed: bool) -> None:
        self._frame = framer(source)
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
            self.add(sample, payload)
            if sample.bytes >= max_bytes:
                break
        return sample

    def add(self, sample: Sample, payload: Payload) -> None:
        """Take one payload into a sample."""
        sample.objects += 1
        if len(sample.keys) < MOST_KEYS:
            sample.keys.append(payload.key)
        data = payload.data or b""
        sample.bytes += len(data)
        before = sample.events
        try:
            if self._declared is not None:
                _add_declared(self._declared, sample, data)
            else:
                self._add_values(sample, data)
        except ConversionError:
            pass
        sample.unusable += sample.events == before

    def _add_values(self, sample: Sample, data: bytes) -> None:
        for value, raw in self._frame(data):
            if not isinstance(value, dict) or len(raw) > self._max_event_bytes:
                sample.unread += 1
                continue
            self.note(sample.shape, value)
            sample.events += 1

    def note(self, shape: Shape, event: Mapping[str, Any]) -> None:
        """Take one event into a shape."""
        if self._of_text:
            shape.note_texts(event, typed=self._typed)
        else:
            shape.note(event)


def _add_declared(read: Callable[[bytes], tuple[Shape, int]], sample: Sample, data: bytes) -> None:
    """Take a file that declares its own types: `read` gives them and how many rows it has."""
    try:
        shape, rows = read(data)
    except Exception:  # a damaged file fails in whatever way its bytes lead the reader into
        return
    sample.shape.merge(shape)
    sample.events += max(1, rows)
