"""Payload targets: each format with its declarations, input strategies and slow reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.reasons import Reason, ReasonCode
from tests.fuzz import avro_reader, container_readers, plain_readers, text_inputs
from tests.fuzz.container_inputs import avro_payloads, compressed_payloads, parquet_payloads
from tests.fuzz.plain_readers import Reading
from tests.fuzz.targets import CompressedTarget, PayloadTarget, Reader, Target, Variant

#: Size limit of decompressed content.
MOST_CONTENT_BYTES = 4 << 20
_FIELDS = ("name", "time", "id", "device")
_FIELDS_LINE = b"#Fields: name time id device\n"
_PATTERN = r"(?P<name>\S+) (?P<time>\S+) (?P<id>\S+)(?: (?P<device>.+))?"


def _wrapped(payload: bytes) -> Reading:
    return plain_readers.unwrapped(plain_readers.json_values(payload), "body")


def _opened(data: bytes) -> bytes | Reason:
    """Returns an object's content as a task opens it."""
    try:
        return decompress(data, "auto", max_bytes=MOST_CONTENT_BYTES)
    except ContentTooLarge as error:
        return Reason(ReasonCode.TOO_LARGE, "", str(error))
    except DamagedContent as error:
        return Reason(ReasonCode.OBJECT_UNREADABLE, "", str(error))


def _counted(read: Reader) -> Reader:
    """Returns only the number of events, for declarations where no single event's outcome is certain."""

    def counted(payload: bytes) -> Reading:
        reading = read(payload)
        return replace(reading, events=[plain_readers.UNSURE] * len(reading.events), kept=())

    return counted


def _csv(delimiter: str, quote: str, *, header: bool) -> Variant:
    declared = {"delimiter": delimiter, "quote": quote, "header": header} | ({} if header else {"columns": _FIELDS})
    names = () if header else _FIELDS
    return Variant(
        {"format": "csv", "csv": declared},
        text_inputs.csv_payloads(delimiter, quote, header),
        lambda payload: plain_readers.csv_records(payload, delimiter=delimiter, quote=quote, names=names),
    )


#: Personal data of people without opt-out, so that the number of events is the same as without.
PERSONAL = {
    "namespace": "players",
    "subject": ["device", "id"],
    "fields": [
        {"path": "device", "action": "token", "as": "device"},
        {"path": "id", "action": "vault", "as": "player"},
        {"path": "tags[]", "action": "token", "as": "device"},
        {"path": "params.blob", "action": "drop"},
    ],
    "scan": {"email": "count", "phone": "drop"},
    "regulation": {"child": {"when": {"params.level": [1, 1.0, "a"]}, "drop": ["weights"]}},
}
_JSON, _JSON_PAYLOADS = {"format": "json"}, text_inputs.json_payloads()
_ALL: tuple[Target, ...] = (
    PayloadTarget(
        "json",
        "json",
        {
            "values": Variant(_JSON, _JSON_PAYLOADS, plain_readers.json_values),
            "wrapped": Variant(_JSON | {"unwrap": ()}, text_inputs.wrapped_payloads(), _wrapped),
            "kept": Variant(_JSON | {"unwrap": ("httpMethod",)}, text_inputs.wrapped_payloads(), _counted(_wrapped)),
            "small": Variant(_JSON | {"max_event_bytes": 60}, _JSON_PAYLOADS, _counted(plain_readers.json_values)),
            "personal": Variant(_JSON | {"privacy": PERSONAL}, _JSON_PAYLOADS, _counted(plain_readers.json_values)),
            "digests": Variant(_JSON, _JSON_PAYLOADS, _counted(plain_readers.json_values), {"id": ["id", "device"]}),
        },
    ),
    PayloadTarget(
        "csv",
        "text",
        {
            "commas": _csv(",", '"', header=True),
            "semicolons": _csv(";", "'", header=False),
            "tabs": _csv("\t", '"', header=True),
        },
    ),
    PayloadTarget(
        "tsv",
        "text",
        {
            "fields": Variant({"format": "tsv"}, text_inputs.line_payloads(_FIELDS_LINE), plain_readers.field_lines),
            "columns": Variant(
                {"format": "tsv", "tsv": {"columns": _FIELDS}},
                text_inputs.line_payloads(b""),
                lambda payload: plain_readers.field_lines(payload, names=_FIELDS),
            ),
        },
    ),
    PayloadTarget(
        "text",
        "text",
        {
            "pattern": Variant(
                {"format": "text", "pattern": _PATTERN},
                text_inputs.line_payloads(b"login 1700000000 a some words\n"),
                lambda payload: plain_readers.matched_lines(payload, _PATTERN),
            )
        },
    ),
    PayloadTarget(
        "avro", "binary", {"objects": Variant({"format": "avro"}, avro_payloads(), avro_reader.avro_records)}
    ),
    PayloadTarget(
        "parquet",
        "binary",
        {"objects": Variant({"format": "parquet"}, parquet_payloads(), container_readers.parquet_rows)},
    ),
    CompressedTarget(
        "compressed",
        "binary",
        {"json": Variant(_JSON, compressed_payloads(_JSON_PAYLOADS), plain_readers.json_values)},
        _opened,
        lambda data: container_readers.content_of(data, most=MOST_CONTENT_BYTES),
    ),
)
PAYLOAD_TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
