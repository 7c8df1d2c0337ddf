"""A slow, simple reader of Avro containers, written from the specification without a decoding library.

A library follows a schema to any depth on the C stack and may crash the process. This reader limits the depth; deeper
values, and values that readers may refuse, do not count as a difference. Damaged containers leave a range: an
unreadable block holds at least one event, and at most one more than it declares.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from tests.fuzz.plain_readers import BROKEN, NOTHING, SURROGATE, UNSURE, Reading, exactly

#: Limit of records read individually; a larger object exceeds the product's budgets too.
MOST_READ = 20_000
_MOST_LEVELS = 60
_SYNC_BYTES = 16
_MOST_INFLATED = 8 << 20
_MOST_FIXED_BYTES = 1 << 31
_LONGEST_NUMBER = 10


class _Torn(Exception):
    """Raised when the container is truncated or inconsistent."""


class _Doubtful(Exception):
    """Raised for values that no writer produces and readers may accept or refuse: integers beyond 64 bits, a negative
    branch.
    """


class _Typed:
    """Placeholder for a value of a logical type, such as an instant, which may be read as text, number or raw value."""


@dataclass(slots=True)
class _Bytes:
    """The unread bytes of a container or block. `has_bad_text` is set once a string was invalid UTF-8."""

    data: bytes
    position: int = 0
    has_bad_text: bool = False

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self.data):
            raise _Torn
        self.position += count
        return self.data[self.position - count : self.position]

    def long(self, most_bytes: int = _LONGEST_NUMBER) -> int:
        value = 0
        for index in range(most_bytes):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise _Torn


@dataclass(frozen=True, slots=True)
class _Type:
    """Reads values of a type, and knows their minimum size in bytes."""

    read: Callable[[_Bytes], Any]
    least_bytes: int


def avro_records(payload: bytes) -> Reading:
    """Reads an Avro container block by block and record by record."""
    content = _Bytes(payload)
    try:
        if content.take(4) != b"Obj\x01":
            return NOTHING
        metadata = _metadata(content)
        sync = content.take(_SYNC_BYTES)
        declared = _json(metadata[b"avro.schema"])
    except Exception:  # a damaged header may raise anything; nothing of the container can be read
        return NOTHING
    if not isinstance(declared, dict) or declared.get("type") != "record":
        return NOTHING
    blocks = list(_blocks(content, sync))
    codec = metadata.get(b"avro.codec", b"null")
    record = _plain_type(declared)
    if record is None or codec not in (b"null", b"deflate"):
        return Reading((), 0, float("inf"), whole=True, may_be_empty=not blocks)
    return _counted(blocks, codec, record)


def _counted(blocks: Sequence[tuple[int, bytes | None]], codec: bytes, record: _Type) -> Reading:
    events: list[Any] = []
    least, most, broken, is_certain = 0, 0, 0, True
    for count, block in blocks:
        try:
            records = _records(block, codec, record, count)
        except _Doubtful:
            least, most, is_certain = least + 1, most + max(count, 1), False
        except (_Torn, zlib.error):
            broken, least, most, is_certain = broken + 1, least + 1, most + max(count, 0) + 1, False
        else:
            # After a broken block the positions of events are unknown.
            events += records if is_certain else []
            least, most = least + len(records), most + len(records)
    return exactly(events) if is_certain else Reading(events, least, most, whole=bool(broken), broken=broken)


def _json(text: bytes) -> Any:
    if SURROGATE.search(text.decode()):
        raise ValueError("half of a character")
    return json.loads(text.decode())


def _metadata(content: _Bytes) -> dict[bytes, bytes]:
    metadata = {}
    while count := content.long():
        if count < 0:
            count, _ = -count, content.long()
        for _ in range(count):
            name = content.take(content.long())
            metadata[name] = content.take(content.long())
    return metadata


def _blocks(content: _Bytes, sync: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yields the number of records and the bytes of each block; for a truncated last block, no bytes."""
    while content.position < len(content.data):
        count = 0
        try:
            count = content.long()
            block = content.take(content.long())
            if count < 0 or content.take(_SYNC_BYTES) != sync:
                raise _Torn
        except _Torn:
            yield count, None
            return
        yield count, block


def _inflated(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    inflating = zlib.decompressobj(-15)
    content = inflating.decompress(block, _MOST_INFLATED)
    if inflating.unconsumed_tail:
        raise _Doubtful
    if not inflating.eof:
        raise _Torn
    return content


def _records(block: bytes | None, codec: bytes, record: _Type, count: int) -> list[Any]:
    if block is None or count > MOST_READ:
        raise _Torn
    content, events = _Bytes(_inflated(block, codec)), []
    for _ in range(count):
        content.has_bad_text = False
        event = record.read(content)
        if content.has_bad_text:
            event = BROKEN
        elif isinstance(event.get("name"), _Typed):
            event = UNSURE
        events.append(event)
    # A block that says it has fewer records than it has would lose the others.
    if content.position < len(content.data):
        raise _Torn
    return events


def _plain_type(declared: dict[str, Any]) -> _Type | None:
    """Returns the type that a schema declares; None if readers may refuse it.

    Readers may refuse recursive or deeply nested types, items or records of zero bytes, and invalid schemas.
    """
    try:
        record = _Types().of(declared, "", 0)
        # Names, defaults and symbols are not needed for reading, but readers validate them.
        fastavro.parse_schema(declared)
    except Exception:  # a damaged schema may raise any error
        return None
    return record if record.least_bytes else None


class _Types:
    """The types of one schema; later types can refer to named ones."""

    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}

    def of(self, schema: Any, namespace: str, level: int) -> _Type:
        if level > _MOST_LEVELS:
            raise _Torn
        if isinstance(schema, list):
            return _union([self.of(branch, namespace, level + 1) for branch in schema])
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            return self._named[f"{namespace}.{schema}" if namespace and "." not in schema else schema]
        kind = schema["type"]
        if kind == "array":
            return _array(self.of(schema["items"], namespace, level + 1))
        if kind == "map":
            return _map(self.of(schema["values"], namespace, level + 1))
        if kind in ("record", "enum", "fixed"):
            plain = self._with_name(kind, schema, namespace, level)
        else:
            plain = self.of(kind, namespace, level + 1)
        return _logical(plain, kind, schema.get("logicalType"))

    def _with_name(self, kind: str, schema: dict[str, Any], namespace: str, level: int) -> _Type:
        name, inside = schema["name"], schema.get("namespace", namespace)
        full = name if "." in name or not inside else f"{inside}.{name}"
        if kind == "enum":
            read = _enum(schema["symbols"])
        elif kind == "fixed":
            read = _fixed(schema["size"])
        else:
            fields = [
                (field["name"], self.of(field["type"], full.rpartition(".")[0], level + 1))
                for field in schema["fields"]
            ]
            read = _record(fields)
        if full in self._named:
            raise _Torn
        self._named[full] = read
        return read


def _number(content: _Bytes) -> int:
    began = content.position
    value = content.long(len(content.data))
    if content.position - began > _LONGEST_NUMBER or not -(2**63) < value < 2**63:
        raise _Doubtful
    return value


def _bytes(content: _Bytes) -> bytes:
    return content.take(_number(content))


def _shown(data: bytes) -> str:
    """Returns bytes as they appear in an event."""
    return data.hex()


def _text(content: _Bytes) -> str:
    data = _bytes(content)
    try:
        return data.decode()
    except UnicodeDecodeError:
        content.has_bad_text = True
        return ""


def _unpacked(form: str) -> Callable[[_Bytes], float]:
    def read(content: _Bytes) -> float:
        number: float = struct.unpack(form, content.take(struct.calcsize(form)))[0]
        return number

    return read


_PRIMITIVES = {
    "null": _Type(lambda content: None, 0),
    "boolean": _Type(lambda content: content.take(1) != b"\0", 1),
    "int": _Type(_number, 1),
    "long": _Type(_number, 1),
    "float": _Type(_unpacked("<f"), 4),
    "double": _Type(_unpacked("<d"), 8),
    "bytes": _Type(lambda content: _shown(_bytes(content)), 1),
    "string": _Type(_text, 1),
}


def _choice(content: _Bytes, choices: Sequence[Any]) -> Any:
    index = _number(content)
    if index < 0:
        raise _Doubtful
    if index >= len(choices):
        raise _Torn
    return choices[index]


def _enum(symbols: Sequence[str]) -> _Type:
    return _Type(lambda content: _choice(content, symbols), 1)


def _fixed(size: int) -> _Type:
    if not 0 <= size <= _MOST_FIXED_BYTES:
        raise _Torn
    return _Type(lambda content: _shown(content.take(size)), size)


def _union(branches: Sequence[_Type]) -> _Type:
    return _Type(lambda content: _choice(content, branches).read(content), 1)


def _record(fields: Sequence[tuple[str, _Type]]) -> _Type:
    return _Type(
        lambda content: {name: kind.read(content) for name, kind in fields}, sum(kind.least_bytes for _, kind in fields)
    )


def _array(item: _Type) -> _Type:
    if not item.least_bytes:
        raise _Torn
    return _Type(lambda content: [item.read(content) for _ in _items(content)], 1)


def _map(value: _Type) -> _Type:
    def read(content: _Bytes) -> dict[str, Any]:
        values = {}
        for _ in _items(content):
            had_bad_text = content.has_bad_text
            name = _text(content)
            # Readers that accept any bytes in a string need not accept them in a name.
            if content.has_bad_text and not had_bad_text:
                raise _Doubtful
            values[name] = value.read(content)
        return values

    return _Type(read, 1)


def _items(content: _Bytes) -> Iterator[int]:
    """Yields the items of an array or map, block by block."""
    while count := _number(content):
        if count < 0:
            count, _ = -count, _number(content)
        yield from range(count)


_LOGICAL_TYPES = {
    ("bytes", "decimal"),
    ("fixed", "decimal"),
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
}


def _logical(plain: _Type, kind: Any, name: Any) -> _Type:
    """Returns the type, with placeholders for values of a logical type."""

    def typed(content: _Bytes) -> Any:
        plain.read(content)
        return _Typed()

    def unique(content: _Bytes) -> Any:
        text = plain.read(content)
        try:
            uuid.UUID(text)
        except ValueError:
            return text
        return _Typed()

    if (kind, name) in _LOGICAL_TYPES:
        return _Type(typed, plain.least_bytes)
    return _Type(unique, plain.least_bytes) if (kind, name) == ("string", "uuid") else plain
