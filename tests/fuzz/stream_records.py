"""Fuzzes Kafka and Kinesis records as a task receives them: keys, headers, times, and aggregated records."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from deltaworks.sources.kafka.source import KafkaReader
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.rows import MAGIC, Rows, deaggregate
from deltaworks.sources.kinesis.source import KinesisReader
from deltaworks.sources.records import ReadStatistics, Record
from tests.fuzz import event_checks
from tests.fuzz.cases import Case
from tests.fuzz.container_inputs import COMPRESSORS
from tests.fuzz.container_readers import content_of
from tests.fuzz.event_checks import Observed, declared, observe, problems
from tests.fuzz.plain_readers import BROKEN, NOTHING, exactly, json_values
from tests.fuzz.targets import Inputs
from tests.fuzz.text_inputs import JUNK, WRITTEN, json_payloads

_MOST_BYTES = 1 << 20
_EVENT = {"id": "id"}
_KAFKA = {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["t"], "max_event_bytes": _MOST_BYTES}
_KINESIS = {"kind": "kinesis", "stream": "s", "max_event_bytes": _MOST_BYTES}
_INSTANTS = st.none() | st.sampled_from(
    [
        0,
        1_700_000_000_000_000,
        253_402_300_799_999_999,
        253_402_300_800_000_000,
        2**63 - 1,
        -(2**63),
        -62_135_596_800_000_001,
    ]
)
_VALUES = st.one_of(st.none(), WRITTEN, WRITTEN, json_payloads(), JUNK, st.binary(max_size=20), st.just(b""))
_COMPRESSED = st.builds(lambda kind, data: COMPRESSORS[kind](data), st.sampled_from(["gzip", "bzip2", "zstd"]), WRITTEN)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _data(text: Any) -> bytes | None:
    return text.encode("latin-1", "replace") if isinstance(text, str) else None


def _kafka_batch(records: list[dict[str, Any]]) -> bytes:
    return json.dumps(records).encode()


KAFKA_INPUTS: Inputs = st.lists(
    st.fixed_dictionaries(
        {"timestamp": _INSTANTS, "value": (_VALUES | _COMPRESSED).map(_text)},
        optional={
            "key": st.none() | st.binary(max_size=6).map(_text),
            "headers": st.none()
            | st.lists(
                st.tuples(
                    st.text(st.characters(codec="utf-8"), max_size=4), st.none() | st.binary(max_size=4).map(_text)
                ),
                max_size=3,
            ),
        },
    ),
    min_size=1,
    max_size=4,
).map(_kafka_batch)


def _kafka_records(data: bytes) -> list[dict[str, Any]]:
    """Decodes bytes to records; any bytes are valid."""
    try:
        records = [record for record in json.loads(data) if isinstance(record, dict)]
    except (ValueError, TypeError, RecursionError):
        records = []
    return records or [{"timestamp": 0, "value": data.decode("latin-1")}]


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 else None


def _headers(value: Any) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        return None
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
    return [{"key": str(name).encode("utf-8", "replace").decode(), "value": _data(text)} for name, text in pairs]


_HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A batch of records as Spark's connector returns it; `tombstones` sets how records without a value are treated."""

    name: str = "kafka"
    kind: str = "json"
    by_variant: dict[str, str] = field(default_factory=lambda: {"fields": "quarantine", "tombstones": "event"})

    def variants(self) -> Sequence[str]:
        return list(self.by_variant)

    def inputs(self, variant: str) -> Inputs:
        return KAFKA_INPUTS

    def observe(self, case: Case) -> Observed:
        rows = _kafka_records(case.data)
        micros = pa.array([_whole_number(row.get("timestamp")) for row in rows], pa.int64())
        columns = {
            "topic": pa.array(["t"] * len(rows)),
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array(range(len(rows)), pa.int64()),
            "timestamp": micros.cast(pa.timestamp("us", "UTC")),
            "value": pa.array([_data(row.get("value")) for row in rows], pa.binary()),
            "key": pa.array([_data(row.get("key")) for row in rows], pa.binary()),
            "headers": pa.array([_headers(row.get("headers")) for row in rows], _HEADER_TYPE),
        }
        tombstones = self.by_variant[case.variant]
        reader = KafkaReader(
            topics=("t",),
            has_tombstone_events=tombstones == "event",
            with_fields=True,
            compression="auto",
            max_bytes=_MOST_BYTES,
        )
        records = list(reader([pa.RecordBatch.from_pydict(columns)]))
        return _observed(records, declared(_EVENT, **_KAFKA, tombstones=tombstones))

    def problems(self, case: Case, observed: Observed) -> Sequence[str]:
        rows = _kafka_records(case.data)
        against = [
            problem
            for offset, row in enumerate(rows)
            for problem in self._of_record(_data(row.get("value")), case.variant, observed, offset)
        ]
        seqs = {seq for seq, _ in [*observed.tables, *observed.reasons]}
        return against if seqs <= set(range(len(rows))) else [*against, f"rows of records that were never sent: {seqs}"]

    def _of_record(self, value: bytes | None, variant: str, observed: Observed, offset: int) -> list[str]:
        if value is None:
            reading = NOTHING if self.by_variant[variant] == "quarantine" else exactly([BROKEN])
        else:
            content = content_of(value, most=_MOST_BYTES)
            reading = NOTHING if content is None else json_values(content)
        return problems(observed, reading, seq=offset)

    def counts(self, observed: Observed) -> tuple[int, int]:
        return event_checks.counts(observed)


def _observed(records: list[Record], spec: Any) -> Observed:
    """Returns the parsed rows, and the metrics that the driver computes from the task's result."""
    facts, of_all = ReadStatistics(), ReadStatistics()
    payloads = list(facts.count(records))
    of_all.add(facts)
    of_all.as_metadata()
    return observe(spec, payloads)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def aggregate(keys: Sequence[str], records: Sequence[tuple[int, bytes]]) -> bytes:
    """Encodes an aggregated record's message: keys, and for each user record its key index and data."""
    message = b"".join(_field(1, key.encode()) for key in keys)
    return message + b"".join(_field(3, _varint(1 << 3) + _varint(index) + _field(3, data)) for index, data in records)


def sealed(message: bytes) -> bytes:
    """Adds magic bytes and digest to a message."""
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


_KEYS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=3)
_AGGREGATES = st.builds(
    aggregate,
    _KEYS,
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 2**40]), _VALUES.map(lambda value: value or b"")), max_size=5),
)
_PROTOBUF_JUNK = st.sampled_from(
    [
        b"\x0b" * 3_000,
        b"\x1a\x02\x08\x00",
        b"\x1a\x00" * 200,
        b"\x0a\x02\xff\xfe",
        b"\x80" * 12,
        b"\x22\x00",
        b"\x1a" + b"\x80" * 9 + b"\x01",
    ]
)
KINESIS_INPUTS: dict[str, Inputs] = {
    "plain": st.one_of(
        _VALUES.map(lambda value: value or b""),
        _COMPRESSED,
        _AGGREGATES.map(sealed),
        _AGGREGATES.map(lambda message: MAGIC + message),
    ),
    "sealed": st.one_of(
        _AGGREGATES,
        st.builds(lambda message, junk: message + junk, _AGGREGATES, _PROTOBUF_JUNK | st.binary(max_size=12)),
    ),
}


def plain_user_records(message: bytes) -> list[tuple[str, bytes]] | None:
    """Returns key and data of each user record by the wire format alone; None for a damaged message.

    Raises:
        ValueError: it has field types that readers may refuse.
    """
    keys: list[str] = []
    records: list[tuple[int, bytes]] = []
    for number, value in _fields(message):
        if number in (1, 2) and isinstance(value, bytes):
            try:
                text = value.decode()
            except UnicodeDecodeError:
                raise ValueError("a key that is no UTF-8") from None
            keys += [text] if number == 1 else []
        elif number == 3 and isinstance(value, bytes):
            inner = dict(_fields(value))
            index, data = inner.get(1), inner.get(3)
            if 4 in inner or not isinstance(index, int) or not isinstance(data, bytes):
                raise ValueError("a record with tags, or without what it must have")
            records.append((index, data))
        else:
            raise ValueError("a field that nobody declared")
    if not records or any(index >= len(keys) for index, _ in records):
        return None
    return [(keys[index], data) for index, data in records]


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    fields: list[tuple[int, int | bytes]] = []
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        value, position = _read_varint(message, position)
        if tag & 7 not in (0, 2) or tag > 255:
            raise ValueError("another kind of field")
        if tag & 7 == 0:
            fields.append((tag >> 3, value))
            continue
        if position + value > len(message):
            raise ValueError("a field that is cut off")
        fields.append((tag >> 3, message[position : position + value]))
        position += value
    return fields


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 63:
        byte = message[position]
        value, position, shift = value | (byte & 0x7F) << shift, position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError("a number that is cut off")


@dataclass(frozen=True, slots=True)
class KinesisTarget:
    """A record of a shard; `sealed` inputs are messages of an aggregated record that get magic bytes and digest."""

    name: str = "kinesis"
    kind: str = "binary"

    def variants(self) -> Sequence[str]:
        return list(KINESIS_INPUTS)

    def inputs(self, variant: str) -> Inputs:
        return KINESIS_INPUTS[variant]

    def observe(self, case: Case) -> Observed:
        data = sealed(case.data) if case.variant == "sealed" else case.data
        page = Page(
            sequence_numbers=["49"],
            partition_keys=["k"],
            data=[data],
            arrivals_us=[1_700_000_000_000_000],
            next_iterator=None,
            behind_ms=0,
        )
        rows = Rows(should_deaggregate=True)
        rows.append(page, max_rows=1_000_000, max_bytes=1 << 30)
        reader = KinesisReader(stream="s", with_fields=True, compression="auto", max_bytes=_MOST_BYTES)
        batches = rows.batches(stream="s", shard_id="shardId-000000000000", first_ordinal=0)
        return _observed(list(reader(batches)), declared(_EVENT, **_KINESIS))

    def problems(self, case: Case, observed: Observed) -> Sequence[str]:
        data = sealed(case.data) if case.variant == "sealed" else case.data
        try:
            packed = self._packed(data)
        except ValueError:
            records = deaggregate(data)
            packed = None if records is None else [(record.partition_key, record.data) for record in records]
        values = [data] if packed is None else [value for _, value in packed]
        against = []
        for ordinal, value in enumerate(values):
            content = content_of(value, most=_MOST_BYTES)
            reading = NOTHING if content is None else json_values(content)
            against += problems(observed, reading, seq=ordinal)
        seqs = {seq for seq, _ in [*observed.tables, *observed.reasons]}
        return (
            against if seqs <= set(range(len(values))) else [*against, f"more user records than {len(values)}: {seqs}"]
        )

    @staticmethod
    def _packed(data: bytes) -> list[tuple[str, bytes]] | None:
        message, digest = data[len(MAGIC) : -16], data[-16:]
        if not data.startswith(MAGIC) or hashlib.md5(message, usedforsecurity=False).digest() != digest:
            return None
        return plain_user_records(message)

    def counts(self, observed: Observed) -> tuple[int, int]:
        return event_checks.counts(observed)


#: A record aggregated by another implementation, from the producers' documentation.
PACKED_ELSEWHERE = base64.b64decode(
    "84mawgoIcGxheWVyIDEKCHBsYXllciAyGhkIABoVeyJldmVudE5hbWUiOiJsb2dpbiJ9GhwIARoYeyJldmVudE5hbWUiOiJwdXJjaGFzZSJ9"
    "GhoIABoWeyJldmVudE5hbWUiOiJsb2dvdXQiffmWLRxlaQOm01LzTAwR7UM="
)
