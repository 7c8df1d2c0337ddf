"""Real objects to damage: beginnings of the shared test data if present, and objects from the generators."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from generator.games import deliveries
from generator.settings import GamesSettings
from tests.fuzz import container_inputs
from tests.shared_data import SHARED_DATA

_MOST_BYTES = 6_000
_EVENTS = [
    {"name": "login", "time": 1_700_000_000 + number, "id": f"e{number}", "device": "phone"} for number in range(6)
] + [
    {
        "name": "order",
        "time": 1_700_000_000,
        "id": "o1",
        "amount": 4.99,
        "tags": ["a"],
        "place": {"x": 1, "at": ["1.5"]},
    }
]


def _shared(*patterns: str) -> list[bytes]:
    """Returns the beginnings of shared files, cut at line ends where they have lines."""
    texts = []
    for pattern in patterns:
        for path in sorted(SHARED_DATA.glob(pattern)):
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" and "tar" not in path.name else data
            texts.append(
                data if len(data) <= _MOST_BYTES else data[: data.rfind(b"\n", 0, _MOST_BYTES) + 1 or _MOST_BYTES]
            )
    return texts


@cache
def _requests() -> tuple[bytes, ...]:
    """Returns objects as the game's producers send them: concatenated requests, some of them broken."""
    settings = GamesSettings(players=20, days=1, events_per_file=8)
    objects = []
    for delivery in deliveries(settings):
        data = gzip.decompress(delivery.body)
        objects.append(data.replace(b'\\"eventName\\"', b'\\"name\\"').replace(b'\\"eventTime\\"', b'\\"time\\"'))
        if len(objects) == 12:
            break
    return tuple(objects)


def _lines(events: Sequence[Any]) -> bytes:
    return b"\n".join(json.dumps(event).encode() for event in events)


def _json() -> list[bytes]:
    written = [
        _lines(_EVENTS),
        b"".join(json.dumps(event).encode() for event in _EVENTS),
        json.dumps(_EVENTS, indent=2).encode(),
    ]
    edits = [
        text.replace(b'"user"', b'"id"')
        .replace(b'"channel":"#', b'"name":"login","c":"#')
        .replace(b'"time":"', b'"at":"')
        for text in _shared("wikipedia_edits/*.json.gz")
    ]
    return written + edits + _shared("malformed_json/*.json*", "aws_event_samples/*.json")


def _csv(delimiter: bytes, header: bool) -> list[bytes]:
    rows = [
        b",".join([b"login", str(event["time"]).encode(), event["id"].encode(), b'"a ""b"",\nc"']) for event in _EVENTS
    ]
    head = [b"name,time,id,device"] if header else []
    own = b"\n".join([*head, *rows]) + b"\n"
    return [
        own.replace(b",", delimiter),
        *_shared("fundamentals/*.csv", "id_mutations/*.csv", "media_player_events/source/*.csv"),
    ]


def _field_lines() -> list[bytes]:
    own = b"#Version: 1.0\n#Fields: name time id device\n" + b"\n".join(
        b"login\t1700000000\te%d\t-" % n for n in range(5)
    )
    return [own, *_shared("cloudfront_logs/*")]


def _text() -> list[bytes]:
    return [
        b"\n".join(b"login 1700000000 e%d some words" % number for number in range(6)),
        *_shared("cloudfront_logs/*.log"),
    ]


def _avro() -> list[bytes]:
    schema = {
        "type": "record",
        "name": "event",
        "fields": [
            *({"name": name, "type": "string"} for name in ("name", "id")),
            {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {
                "name": "place",
                "type": ["null", {"type": "record", "name": "place", "fields": [{"name": "x", "type": "double"}]}],
            },
            {"name": "weights", "type": {"type": "map", "values": "float"}},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        ],
    }
    head = {"tags": ["a", "b"], "place": {"x": 1.5}, "weights": {"a": 1.0}, "amount": Decimal("4.99")}
    records = [
        {"name": event["name"], "id": event["id"], "time": event["time"] * 1_000_000, **head} for event in _EVENTS
    ]
    encoded = [container_inputs.encoded(schema, record) for record in records]
    blocks = [(len(encoded), b"".join(encoded)), (1, encoded[0])]
    simple = container_inputs.avro_blocks(
        [[dict(device=None) | {k: e[k] for k in ("name", "time", "id")} for e in _EVENTS[:3]]] * 2, "deflate", 0
    )
    return [container_inputs.avro_container(schema, blocks), simple]


def _parquet() -> list[bytes]:
    events = [{name: event.get(name) for name in ("name", "time", "id", "device")} for event in _EVENTS]
    table = pa.Table.from_pylist(events)
    rich = table.append_column("at", pa.array([1] * len(events), pa.timestamp("ns", "UTC"))).append_column(
        "nested", pa.array([{"a": [{"b": 1}], "m": "x"}] * len(events))
    )
    return [
        container_inputs.parquet_object(table),
        container_inputs.parquet_object(table, compression="none", use_dictionary=False, row_group_size=3),
        container_inputs.parquet_object(rich, write_page_checksum=True),
        container_inputs.parquet_object(rich, compression="none", data_page_version="2.0"),
    ]


def _compressed() -> list[bytes]:
    return [
        compress(data)
        for compress in container_inputs.COMPRESSORS.values()
        for data in (_lines(_EVENTS), _lines(_EVENTS) * 50)
    ]


def _kafka() -> list[bytes]:
    records = [
        {"timestamp": 1_700_000_000_000_000, "key": "k", "headers": [["h", "v"]], "value": json.dumps(event)}
        for event in _EVENTS
    ]
    return [json.dumps(records).encode(), json.dumps([*records[:2], {"timestamp": None, "value": None}]).encode()]


def _kinesis(variant: str) -> list[bytes]:
    from tests.fuzz.stream_records import PACKED_ELSEWHERE, aggregate, sealed

    message = aggregate(["a", "é"], [(index % 2, json.dumps(event).encode()) for index, event in enumerate(_EVENTS)])
    if variant == "sealed":
        return [message, PACKED_ELSEWHERE[4:-16]]
    return [sealed(message), PACKED_ELSEWHERE, _lines(_EVENTS)]


def _declarations(variant: str) -> list[bytes]:
    from tests.fuzz.declarations import real_declarations

    return real_declarations(variant)


def _messages() -> list[bytes]:
    record = {
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "s3": {
            "bucket": {"name": "landing"},
            "object": {"key": "a/b+c%2B.json", "size": 5, "eTag": "d41d8cd9", "sequencer": "00"},
        },
    }
    notification = json.dumps({"Records": [record, record]})
    enveloped = json.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:us-east-1:1:t", "Message": notification})
    return [
        notification.encode(),
        enveloped.encode(),
        *_shared("s3_event_messages/*.json", "aws_event_samples/s[3nq]*.json"),
    ]


_BY_TARGET: dict[str, Callable[[str], list[bytes]]] = {
    "json": lambda variant: [*_requests(), *_wrapped(_EVENTS)] if variant.startswith("wrapped") else _json(),
    "csv": lambda variant: _csv(b";" if variant == "semicolons" else b",", variant != "semicolons"),
    "tsv": lambda variant: _field_lines(),
    "text": lambda variant: _text(),
    "avro": lambda variant: _avro(),
    "parquet": lambda variant: _parquet(),
    "compressed": lambda variant: _compressed(),
    "kafka": lambda variant: _kafka(),
    "kinesis": _kinesis,
    "messages": lambda variant: _messages(),
    "declarations": _declarations,
}


def _wrapped(events: Sequence[Any]) -> list[bytes]:
    return [
        b"".join(json.dumps({"httpMethod": "POST", "body": json.dumps(event)}).encode() for event in events),
        json.dumps({"body": json.dumps(events)}).encode(),
        json.dumps({"body": events}).encode(),
    ]


@cache
def seeds(target: str, variant: str) -> tuple[bytes, ...]:
    """Returns objects to damage for one variant of a target; deterministic for the same shared data."""
    return tuple(data for data in _BY_TARGET[target](variant) if data)


def own_seeds(target: str, variant: str) -> tuple[bytes, ...]:
    """Returns the seeds that need no shared data; deterministic."""
    with patch.object(sys.modules[__name__], "_shared", lambda *patterns: []):
        return tuple(data for data in _BY_TARGET[target](variant) if data)
