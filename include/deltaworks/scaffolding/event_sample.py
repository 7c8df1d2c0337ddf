"""Reads a sample of events of bounded size from files or a landing bucket, as the original bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from deltaworks.errors import ContractError
from deltaworks.events.budget import OverBudget
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.envelope_inference import UnknownFormat, choose_time_field, detect_format
from deltaworks.events.inference.field_profiles import FieldProfile
from deltaworks.sources.objects.landing.inputs import Input
from deltaworks.sources.objects.landing.land import pieces_of
from deltaworks.specs.sources.selection import FileSourceSpec

_PIECE_BYTES = 1 << 20
_MIN_BYTES_PER_FILE = 256 << 10
#: Maximum number of files whose format is detected.
_MAX_DETECTED_FILES = 50
_WRAPPER_SAMPLE_SIZE = 1_000


@dataclass(slots=True)
class EventSample:
    """The payloads of a sample, and the name of the field that contains the events in each value.

    The number of files read, completely or in part, is `files`; `is_complete` is True if every file was read
    completely.
    """

    source: FileSourceSpec
    payloads: list[bytes] = field(default_factory=list)
    files: int = 0
    is_complete: bool = True
    unwrap: str = ""

    @property
    def bytes(self) -> int:
        """The decompressed size of the payloads."""
        return sum(map(len, self.payloads))

    def values(self) -> Iterator[Any]:
        """Yields every readable value of the payloads."""
        events_of = create_framer(self.source)
        for payload in self.payloads:
            try:
                for value, _ in events_of(payload):
                    if not isinstance(value, Malformed | OverBudget):
                        yield value
            except ConversionError:  # this payload is unreadable
                continue

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events of all values. Values that are not events are skipped, since the stream will quarantine
        them.
        """
        for value in self.values():
            yield from _unwrap(value, self.unwrap)


def sample_files(inputs: Sequence[Input], location: Mapping[str, str], *, max_bytes: int) -> EventSample:
    """Reads the beginning of every file, up to about `max_bytes` in total.

    Args:
        location: `relay`, `bucket` and `prefix` of the source.

    Raises:
        ContractError: FORMAT_UNKNOWN, INPUT_DAMAGED, INPUT_TOO_LARGE.
        ConfigError: INPUT_MISSING.
    """
    format_options = _detect_format(inputs[:_MAX_DETECTED_FILES])
    source = FileSourceSpec.model_validate({"kind": "s3_sqs", **location, **format_options})
    sample = EventSample(source)
    bytes_per_file = max(_MIN_BYTES_PER_FILE, max_bytes // len(inputs))
    for file in inputs:
        if sample.bytes >= max_bytes:
            sample.is_complete = False
            break
        sample.files += 1
        bytes_read = 0
        with file.open(decompress=source.format not in ("parquet", "avro")) as content:
            for piece in pieces_of(content, source, object_bytes=_PIECE_BYTES):
                if bytes_read >= bytes_per_file:
                    sample.is_complete = False
                    break
                sample.payloads.append(piece.data)
                bytes_read += len(piece.data)
    sample.unwrap = _find_wrapper(sample) if source.format == "json" else ""
    return sample


def _detect_format(inputs: Sequence[Input]) -> Mapping[str, Any]:
    forms: dict[str, tuple[Mapping[str, Any], Input]] = {}
    for file in inputs:
        with file.open() as content:
            head = content.head()
        try:
            form = detect_format(head)
        except UnknownFormat as unknown:
            raise ContractError("FORMAT_UNKNOWN", f"{file}: {unknown}.") from unknown
        forms.setdefault(repr(form), (form, file))
    if len(forms) > 1:
        named = "; ".join(f"{file} is {form['format']}" for form, file in forms.values())
        raise ContractError(
            "FORMAT_UNKNOWN",
            f"A pipeline reads one format, and these files have {len(forms)}: {named}.",
            hint="Give files of one format, and create another pipeline for the others.",
        )
    return next(iter(forms.values()))[0]


def _unwrap(value: Any, unwrap: str) -> Iterator[dict[str, Any]]:
    if unwrap:
        value = value.get(unwrap) if isinstance(value, dict) else None
        if isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                return
    for event in value if isinstance(value, list) else [value]:
        if isinstance(event, dict):
            yield event


def _find_wrapper(sample: EventSample) -> str:
    """Returns the field that contains the event or events of every value; empty if the values themselves are events."""
    first = [value for value in islice(sample.values(), _WRAPPER_SAMPLE_SIZE) if isinstance(value, dict)]
    if not first:
        return ""
    outer = _profile(first)
    for name in first[0]:
        if not name or "." in name or not all(_is_wrapper(name, value) for value in first):
            continue
        inner = [event for value in first for event in _unwrap(value, name)]
        # A value that has a time field is itself an event. Requests as API gateways pass them on are an exception:
        # their body contains the events.
        is_request = name == "body" and all(isinstance(value.get(name), str | dict) for value in first)
        if (
            inner
            and choose_time_field(_profile(inner)) is not None
            and (is_request or choose_time_field(outer) is None)
        ):
            return str(name)
    return ""


def _profile(events: Sequence[dict[str, Any]]) -> FieldProfile:
    profile = FieldProfile()
    for event in events:
        profile.add_value(event)
    return profile


def _is_wrapper(name: str, values: dict[str, Any]) -> bool:
    """Returns whether this field contains events; an object does if it is the body of a request."""
    value = values.get(name)
    if isinstance(value, dict):
        return name == "body" and bool(value)
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        return isinstance(value, dict) or _is_list_of_objects(value)
    return _is_list_of_objects(value)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(event, dict) for event in value)
