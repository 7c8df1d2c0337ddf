"""Reads the records of Avro object container files as events, with values as in JSON.

The container is parsed here block by block, so that announced record counts and inflated sizes are checked against the
budgets before decoding: a compressed block can expand a thousandfold. fastavro decodes the records.

A reader nests as deeply, and creates as many values, as the bytes request. So the schema must bound the memory of a
record. These schemas are rejected: recursive types, types nested beyond `MAX_LEVELS`, and records or items that take no
bytes, of which a block may announce any number.
"""

from __future__ import annotations

import datetime as dt
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from deltaworks.events.budget import BYTES_PER_VALUE, Budget, BudgetExceededError, FramedEvent, over_budget_event
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.value_conversion import record_to_event
from deltaworks.events.reasons import ConversionError, ReasonCode

# Codecs of blocks.

_CHECKSUM_BYTES = 4
#: Memory limit for LZMA.
_MAX_LZMA_BYTES = 128 << 20

Codec = Callable[[bytes, int], bytes]


def _inflate_null(content: bytes, max_bytes: int) -> bytes:
    return _check_size(content, max_bytes)


def _inflate_deflate(content: bytes, max_bytes: int) -> bytes:
    inflating = zlib.decompressobj(-15)
    inflated = _check_size(inflating.decompress(content, max_bytes + 1), max_bytes)
    if not inflating.eof:
        raise DamagedContent("the end-of-stream marker is missing")
    return inflated


def _inflate_bzip2(content: bytes, max_bytes: int) -> bytes:
    return decompress(content, "bzip2", max_bytes=max_bytes)


def _inflate_zstandard(content: bytes, max_bytes: int) -> bytes:
    return decompress(content, "zstd", max_bytes=max_bytes)


def _inflate_xz(content: bytes, max_bytes: int) -> bytes:
    inflating = lzma.LZMADecompressor(memlimit=_MAX_LZMA_BYTES)
    inflated = _check_size(inflating.decompress(content, max_bytes + 1), max_bytes)
    if not inflating.eof:
        raise DamagedContent("the end-of-stream marker is missing")
    return inflated


def _inflate_snappy(content: bytes, max_bytes: int) -> bytes:
    body, size = content[:-_CHECKSUM_BYTES], 0
    for index, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > max_bytes:
        raise ContentTooLarge(f"has {size} bytes; at most {max_bytes} are allowed")
    inflated = bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    if zlib.crc32(inflated) != int.from_bytes(content[-_CHECKSUM_BYTES:]):
        raise DamagedContent("its checksum does not match")
    return inflated


def _check_size(inflated: bytes, max_bytes: int) -> bytes:
    if len(inflated) > max_bytes:
        raise ContentTooLarge(f"has {len(inflated)} bytes or more; at most {max_bytes} are allowed")
    return inflated


#: Functions by codec name that inflate a block to at most the given size.
CODECS: Mapping[str, Codec] = {
    "null": _inflate_null,
    "deflate": _inflate_deflate,
    "bzip2": _inflate_bzip2,
    "xz": _inflate_xz,
    "zstandard": _inflate_zstandard,
    "snappy": _inflate_snappy,
}


# The memory of records, by their schema.

#: Maximum nesting. Converting to JSON is recursive, and Python's stack allows a few hundred levels.
MAX_LEVELS = 64
#: Maximum number of values in a record, not counting items of arrays and maps.
_MAX_RECORD_VALUES = 100_000
_PRIMITIVES: Mapping[str, int] = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}


@dataclass(frozen=True, slots=True)
class TypeCost:
    """Cost of reading one value of a type.

    Attributes:
        min_bytes: minimum size in the container.
        values: number of values including nested ones, without items of arrays and maps.
        values_per_byte: maximum number of values per byte of array and map items; 0 without arrays and maps.
    """

    min_bytes: int
    values: int
    values_per_byte: int = 0


def schema_cost(schema: Any) -> TypeCost:
    """Returns the cost of reading a record of the schema.

    Raises:
        ConversionError: the schema is unbounded or invalid.
    """
    cost = _CostCalculator().type_cost(schema, "", 0)
    if cost.min_bytes == 0:
        raise _unbounded_schema_error("its records take no bytes")
    return cost


class _CostCalculator:
    def __init__(self) -> None:
        self._named_costs: dict[str, TypeCost | None] = {}

    def type_cost(self, schema: Any, namespace: str, level: int) -> TypeCost:
        if level > MAX_LEVELS:
            raise _unbounded_schema_error(f"its types are nested more than {MAX_LEVELS} deep")
        if isinstance(schema, list):
            return self._union_cost([self.type_cost(branch, namespace, level + 1) for branch in schema])
        if isinstance(schema, str):
            return self._named_cost(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _unbounded_schema_error("one of its types is invalid")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._declared_cost(kind, schema, namespace, level)
        if kind in ("array", "map"):
            inner = self.type_cost(schema.get("items" if kind == "array" else "values"), namespace, level + 1)
            return _repeated_cost(inner, key_bytes=int(kind == "map"))
        return self.type_cost(kind, namespace, level + 1)

    def _named_cost(self, name: str, namespace: str) -> TypeCost:
        if name in _PRIMITIVES:
            return TypeCost(_PRIMITIVES[name], 1)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named_costs else name
        if full not in self._named_costs:
            raise _unbounded_schema_error(f"it has no type {name[:80]!r}")
        cost = self._named_costs[full]
        if cost is None:
            raise _unbounded_schema_error(f"the type {name[:80]!r} is recursive")
        return cost

    def _declared_cost(self, kind: str, schema: Mapping[str, Any], namespace: str, level: int) -> TypeCost:
        name = str(schema.get("name", ""))
        namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
        name = name if "." in name or not namespace else f"{namespace}.{name}"
        self._named_costs[name] = None
        if kind == "enum":
            cost = TypeCost(1, 1)
        elif kind == "fixed":
            cost = TypeCost(int(schema.get("size", 0)), 1)
        else:
            fields = [self.type_cost(field["type"], namespace, level + 1) for field in schema["fields"]]
            cost = TypeCost(
                sum(field.min_bytes for field in fields),
                1 + sum(field.values for field in fields),
                max((field.values_per_byte for field in fields), default=0),
            )
        if cost.values > _MAX_RECORD_VALUES:
            raise _unbounded_schema_error(f"a record has more than {_MAX_RECORD_VALUES} values")
        self._named_costs[name] = cost
        return cost

    @staticmethod
    def _union_cost(branches: list[TypeCost]) -> TypeCost:
        return TypeCost(
            1 + min((branch.min_bytes for branch in branches), default=0),
            max((branch.values for branch in branches), default=1),
            max((branch.values_per_byte for branch in branches), default=0),
        )


def _repeated_cost(inner: TypeCost, *, key_bytes: int) -> TypeCost:
    min_bytes = inner.min_bytes + key_bytes
    if min_bytes == 0:
        raise _unbounded_schema_error("items of an array take no bytes")
    return TypeCost(1, 1, max(inner.values_per_byte, -(-inner.values // min_bytes)))


def _unbounded_schema_error(why: str) -> ConversionError:
    return ConversionError(ReasonCode.OBJECT_UNREADABLE, f"its Avro schema is unbounded: {why}")


# Reading the container.

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_VARINT_BYTES = 10
_MAX_SCHEMA_BYTES = 4 << 20
#: The stream's repr in fastavro's error messages.
_STREAM_REPR = re.compile(r"(?: from)? ?<[\w.]+ object at 0x[0-9a-fA-F]+>")


class _CorruptContainerError(ValueError):
    """Raised if the container is truncated or corrupt at this point."""


@dataclass(frozen=True, slots=True)
class _Container:
    """Header of a container: schema, codec, schema cost, sync marker, and the offset of the first block."""

    schema: Any
    codec: str
    cost: TypeCost
    sync: bytes
    start: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A block: offsets of its content, and its announced number of records."""

    records: int
    begin: int
    end: int


def read_events(payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
    """Yields every record of a container as an event.

    Yields one `Malformed` per unreadable block, one for the rest after a corrupt block header, and one `OverBudget` per
    block that would take too much memory.

    Raises:
        ConversionError: the object is not an Avro container, its header is unreadable, or its schema is unbounded.
        BudgetExceededError: max_records, max_values.
    """
    if not payload.startswith(MAGIC):
        raise ConversionError(
            ReasonCode.OBJECT_WRONG_FORMAT, ("it does not start with the magic bytes of an Avro container")
        )
    try:
        container = _read_header(payload)
        reader = _BlockReader(container, budget)
    except ConversionError:
        raise
    except Exception as error:  # a corrupt header may raise anything
        raise ConversionError(
            ReasonCode.OBJECT_UNREADABLE, f"its Avro header is unreadable: {_describe_error(error)}"
        ) from None
    budget.check_announced_records(
        sum(block.records for block in _read_blocks(payload, container) if isinstance(block, _Block))
    )
    for number, block in enumerate(_read_blocks(payload, container)):
        if isinstance(block, _CorruptContainerError):
            yield Malformed(b"", f"block {number} and the rest are unreadable: {block}"), b""
            return
        name = f"block {number} of {block.records} records"
        yield from reader.read_events(payload[block.begin : block.end], block.records, name)


class _BlockReader:
    """Decodes the blocks of a container; the schema is parsed once.

    fastavro reads from an endless stream: the header, followed by each inflated block.
    """

    def __init__(self, container: _Container, budget: Budget) -> None:
        header = {"avro.schema": orjson.dumps(container.schema), "avro.codec": b"null"}
        parts = [MAGIC, _encode_long(len(header))]
        for key, value in header.items():
            parts += [_encode_long(len(key)), key.encode(), _encode_long(len(value)), value]
        self._feed = io.BytesIO(b"".join([*parts, b"\0", container.sync]))
        self._container = container
        self._budget = budget
        self._blocks = fastavro.block_reader(self._feed, handle_unicode_errors="surrogateescape")

    def read_events(self, content: bytes, count: int, name: str) -> Iterator[FramedEvent]:
        """Yields all records of a block, or none: if one record is corrupt, earlier ones may be wrong too.

        Raises:
            BudgetExceededError: max_values.
        """
        try:
            records = self._read_records(self._inflate(content, count), count)
        except ContentTooLarge as error:
            over = self._budget.exceeded_error("max_decoded_bytes", f"{name} {error} for the memory of its values")
            yield over_budget_event(over, events=count), b""
        except BudgetExceededError as over:
            if over.path != "max_decoded_bytes":
                raise
            yield over_budget_event(over, events=count), b""
        except Exception as error:  # codecs and readers may raise anything for corrupt bytes
            yield Malformed(b"", f"{name} is unreadable: {_describe_error(error)}", events=max(1, count)), b""
        else:
            yield from map(record_to_event, records)

    def _inflate(self, content: bytes, count: int) -> bytes:
        cost = self._container.cost
        # The number of array items is bounded by the content's size.
        max_bytes = self._budget.max_decoded_bytes // (BYTES_PER_VALUE * cost.values_per_byte + 2)
        inflated = CODECS[self._container.codec](content, max_bytes)
        if count * cost.min_bytes > len(inflated):
            raise _CorruptContainerError(f"it has {len(inflated)} bytes, but a record needs at least {cost.min_bytes}")
        value_count = count * cost.values + len(inflated) * cost.values_per_byte
        self._budget.check_memory(len(inflated), value_count)
        self._budget.reserve_values(value_count)
        return inflated

    def _read_records(self, content: bytes, count: int) -> list[Any]:
        self._feed.seek(0)
        self._feed.truncate()
        self._feed.write(b"".join((_encode_long(count), _encode_long(len(content)), content, self._container.sync)))
        self._feed.seek(0)
        block: Any = next(self._blocks)
        records = list(block)
        remaining = len(content) - block.bytes_.tell()
        if remaining:
            raise _CorruptContainerError(f"{remaining} bytes follow its records")
        return records


def _with_raw_fallback(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps fastavro's reader of a logical type to return the raw value if it cannot be converted.

    Examples are an instant after year 9999, or a decimal type without precision. Then only the column that reads the
    value fails, and not the block.
    """

    def read_or_raw(value: Any, *schemas: Any) -> Any:
        try:
            return read(value, *schemas)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return value

    return read_or_raw


def _read_nanos(value: int, epoch: dt.datetime) -> dt.datetime:
    return epoch + dt.timedelta(microseconds=value // 1000)


_LOCAL_EPOCH = dt.datetime(1970, 1, 1)
#: fastavro has no readers for nanoseconds: their numbers would be taken for another unit.
LOGICAL_READERS.update(
    {
        "long-timestamp-nanos": lambda value, *_: _read_nanos(value, _LOCAL_EPOCH.replace(tzinfo=dt.UTC)),
        "long-local-timestamp-nanos": lambda value, *_: _read_nanos(value, _LOCAL_EPOCH),
    }
)
LOGICAL_READERS.update({name: _with_raw_fallback(read) for name, read in LOGICAL_READERS.items()})


def _read_header(payload: bytes) -> _Container:
    """Parses the header of a container.

    Raises:
        ConversionError: the schema is not a record, or does not bound the memory of its records.
        Exception: the header is corrupt.
    """
    offset, metadata = len(MAGIC), {}
    while True:
        count, offset = _read_long(payload, offset)
        if count == 0:
            break
        if count < 0:
            _, offset = _read_long(payload, offset)
        for _ in range(abs(count)):
            key, offset = _read_bytes(payload, offset)
            metadata[key], offset = _read_bytes(payload, offset)
    sync = payload[offset : offset + _SYNC_BYTES]
    if len(sync) < _SYNC_BYTES:
        raise _CorruptContainerError("it ends inside its header")
    written = metadata[b"avro.schema"]
    if len(written) > _MAX_SCHEMA_BYTES:
        raise _CorruptContainerError(f"its schema has {len(written)} bytes")
    schema = orjson.loads(written)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "its Avro schema is not a record")
    codec = metadata.get(b"avro.codec", b"null").decode()
    if codec not in CODECS:
        raise _CorruptContainerError(f"its codec {codec[:40]!r} is not supported ({', '.join(CODECS)})")
    return _Container(schema, codec, schema_cost(schema), sync, offset + _SYNC_BYTES)


def _read_blocks(payload: bytes, container: _Container) -> Iterator[_Block | _CorruptContainerError]:
    """Yields the blocks of a container; the last item is an error if a block header is corrupt."""
    offset = container.start
    while offset < len(payload):
        try:
            records, begin = _read_long(payload, offset)
            size, begin = _read_long(payload, begin)
        except _CorruptContainerError as error:
            yield error
            return
        end = begin + size
        if records < 0 or size < 0 or payload[end : end + _SYNC_BYTES] != container.sync:
            yield _CorruptContainerError("the sync marker is missing at its end")
            return
        yield _Block(records, begin, end)
        offset = end + _SYNC_BYTES


def _read_long(payload: bytes, offset: int) -> tuple[int, int]:
    """Reads an Avro long at an offset; returns it with its end offset."""
    number = 0
    for index, byte in enumerate(payload[offset : offset + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), offset + index + 1
    raise _CorruptContainerError("it ends inside a number, or a number is too long")


def _read_bytes(payload: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _read_long(payload, offset)
    if not 0 <= size <= len(payload) - offset:
        raise _CorruptContainerError("it ends inside its header")
    return payload[offset : offset + size], offset + size


def _encode_long(number: int) -> bytes:
    """Encodes a non-negative number as an Avro long."""
    number, parts = number << 1, bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _describe_error(error: Exception) -> str:
    """Returns the error's message without the memory address of fastavro's stream, so that it is reproducible."""
    return f"{type(error).__name__}: {_STREAM_REPR.sub('', str(error))}"[:200]
