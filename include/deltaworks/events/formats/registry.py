"""Registry of payload formats: creates the framer for each format, and detects payloads in another format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from deltaworks.events.budget import Budget, FramedEvent
from deltaworks.events.formats import avro, json, parquet
from deltaworks.events.formats.csv import CsvFramer, FieldLineFramer, LineFramer
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.specs.record_sources import TEXT_FORMATS, PayloadSpec, RecordSourceSpec
from deltaworks.specs.sources import DeltaSourceSpec

Framer = Callable[[bytes], Iterator[FramedEvent]]
#: Function that splits a payload into events and counts its work against the payload's budget.
BudgetedFramer = Callable[[bytes, Budget], Iterator[FramedEvent]]

FORMATS: Mapping[str, Callable[[PayloadSpec], BudgetedFramer]] = {
    "json": lambda source: json.read_events,
    "csv": lambda source: CsvFramer(source.csv).read_events,
    "tsv": lambda source: FieldLineFramer(source.tsv).read_events,
    "text": lambda source: LineFramer(source.pattern or "").read_events,
    "parquet": lambda source: parquet.read_events,
    "avro": lambda source: avro.read_events,
}
#: Value separators of formats whose values can be counted before parsing.
_VALUE_SEPARATORS: Mapping[str, Callable[[PayloadSpec], tuple[bytes, ...]]] = {
    "json": lambda source: (b",", b"[", b"{"),
    "csv": lambda source: (source.csv.delimiter.encode(), b"\n"),
    "tsv": lambda source: (b"\t", b"\n"),
}
#: First bytes of binary file formats. None of them is valid text, so no readable payload is rejected.
_FILE_SIGNATURES = (
    (parquet.MAGIC, "Parquet"),
    (b"ORC", "ORC"),
    (avro.MAGIC, "Avro"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    *((bytes([first]) + b"\x2a\x4d\x18", "zstd or lz4") for first in range(0x50, 0x60)),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"%PDF", "PDF"),
    (b"\x89PNG", "PNG"),
)


@dataclass(frozen=True, slots=True)
class _SchemaHeader:
    """The header that a schema registry's serializer writes before each payload."""

    key: str
    name: str
    size: int

    def is_compressed(self, payload: bytes) -> bool:
        return self.key == "glue" and payload[1] != 0


#: Schema headers by their first byte: Confluent's has a schema id of 4 bytes; AWS Glue's has a byte for the compression
#: and a UUID.
_SCHEMA_HEADERS: Mapping[bytes, _SchemaHeader] = {
    b"\x00": _SchemaHeader("confluent", "Confluent", 5),
    b"\x03": _SchemaHeader("glue", "Glue", 18),
}
_LINES = re.compile(rb"[^\s][^\r\n]*+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def create_framer(
    source: PayloadSpec | DeltaSourceSpec,
    *,
    record_over_budget: Callable[[str], None] | None = None,
    decoder: json.Decoder | None = None,
) -> Framer:
    """Creates the function that splits payloads of a source into events, limited by the source's budgets.

    It raises `ConversionError` before its first event if nothing can be read.

    Args:
        record_over_budget: called once per payload with the name of an exceeded budget.
        decoder: decodes JSON events; see `json.read_events`.
    """
    # Rows of a Delta table arrive as JSON.
    declared = PayloadSpec() if isinstance(source, DeltaSourceSpec) else source
    find = FORMATS[declared.format](declared) if decoder is None else partial(json.read_events, decoder=decoder)
    separators = _VALUE_SEPARATORS[declared.format](declared) if declared.format in _VALUE_SEPARATORS else ()
    text_is_expected = source.format not in ("parquet", "avro")
    schema_header = source.schema_header if isinstance(source, RecordSourceSpec) else None

    def frame(payload: bytes) -> Iterator[FramedEvent]:
        content = payload.removeprefix(_BYTE_ORDER_MARK)
        if not content or content.isspace():
            raise ConversionError(ReasonCode.OBJECT_EMPTY, f"the payload has {len(payload)} bytes and no content")
        if text_is_expected:
            if schema_header is not None:
                payload = _without_schema_header(payload, schema_header, source.format)
            reject_other_formats(payload, source.format)
        budget = Budget(
            source.budget, size=len(payload), max_event_bytes=source.max_event_bytes, on_exceeded=record_over_budget
        )
        budget.reserve_values_of_text(payload, separators)
        return budget.limit(find(payload, budget), payload if text_is_expected else b"")

    return frame


def _without_schema_header(payload: bytes, declared: str, form: str) -> bytes:
    """Returns a record without the header of a schema registry's serializer.

    Raises:
        ConversionError: object_wrong_format, there is a header that is not declared, or its content is not readable.
    """
    header = _SCHEMA_HEADERS.get(payload[:1])
    if header is None or len(payload) <= header.size or (form != "json" and declared != header.key):
        return payload
    content = payload[header.size :]
    prefix = f"it begins with the {header.size} bytes of a {header.name} schema registry"
    if header.is_compressed(payload):
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, f"{prefix} and is compressed: turn compression off there")
    if form == "json" and content[:64].lstrip()[:1] not in (b"{", b"["):
        hint = "what follows is not JSON, but perhaps Avro or Protobuf: let the producer write JSON"
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, f"{prefix}; {hint}")
    if declared != header.key:
        hint = f"declare source.schema_header: {header.key}, which removes them"
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, f"{prefix}; {hint}")
    return content


def estimate_events(payload: bytes, declared: str) -> int:
    """Estimates the number of events in a payload that cannot be framed: the lines of text formats that have content,
    the objects of JSON, and 1 for other content.
    """
    if any(payload.startswith(beginning) for beginning, _ in _FILE_SIGNATURES):
        return 1
    if declared == "json":
        return json.count_objects(payload)
    return max(1, sum(1 for _ in _LINES.finditer(payload))) if declared in TEXT_FORMATS else 1


def reject_other_formats(payload: bytes, declared: str) -> None:
    """Raises if a payload starts like a binary file format although `declared` is a text format.

    Raises:
        ConversionError: object_wrong_format.
    """
    for beginning, name in _FILE_SIGNATURES:
        if payload.startswith(beginning):
            raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, f"it looks like {name}, not {declared}")
    if declared == "json" and payload[:64].lstrip()[:1] == b"<":
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "it looks like XML or HTML, not JSON")
