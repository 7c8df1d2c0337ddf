"""Reads the records of Avro object container files as events, with values as in JSON.

The container is parsed here block by block, so that announced record counts and inflated sizes are checked against the
budgets before decoding. fastavro decodes the records.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
from fastavro.read import LOGICAL_READERS

from deltaworks.events.budget import BYTES_PER_VALUE, Budget, BudgetExceededError, FramedEvent, over_budget_event
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.decompression import ContentTooLarge
from deltaworks.events.formats.avro_codecs import CODECS
from deltaworks.events.formats.avro_schema import TypeCost, schema_cost
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.value_conversion import record_to_event
from deltaworks.events.reasons import ReasonCode

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
            yield over_budget_event(over), b""
        except BudgetExceededError as over:
            if over.path != "max_decoded_bytes":
                raise
            yield over_budget_event(over), b""
        except Exception as error:  # codecs and readers may raise anything for corrupt bytes
            yield Malformed(b"", f"{name} is unreadable: {_describe_error(error)}"), b""
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
