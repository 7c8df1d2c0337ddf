"""Finds the events in an Avro object container: each record is one, its values as JSON has them.

The container is walked here, block by block: how many records one announces, and how large it grows when it is
inflated, are held to the budgets before it is. Its records are read by fastavro, one after another.
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
#: How fastavro's errors name what it read from.
_STREAM_REPR = re.compile(r"(?: from)? ?<[\w.]+ object at 0x[0-9a-fA-F]+>")


class _TornContainerError(ValueError):
    """The container does not go on as one does."""


@dataclass(frozen=True, slots=True)
class _Container:
    """What the header says: its bytes with the codec replaced by none, and where the first block begins."""

    schema: Any
    codec: str
    cost: TypeCost
    sync: bytes
    start: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Where the content of a block lies, and how many records it announces."""

    records: int
    begin: int
    end: int


def read_events(payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
    """Every record; one `Malformed` for each block that cannot be read, and one for what lies behind a torn one; one
    `OverBudget` for each block that would take too much memory.

    Raises:
        Misfit: the object is no Avro container; its header cannot be read, which has the schema and the codec; or its
            schema has no bound.
        Exceeded: max_records, max_values.
    """
    if not payload.startswith(MAGIC):
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "it does not begin as an Avro container does")
    try:
        container = _read_header(payload)
        reader = _BlockReader(container, budget)
    except ConversionError:
        raise
    except Exception as error:  # whatever the bytes of a damaged header lead the reader into
        raise ConversionError(
            ReasonCode.OBJECT_UNREADABLE, f"its Avro header cannot be read: {_describe_error(error)}"
        ) from None
    budget.check_announced_records(
        sum(block.records for block in _read_blocks(payload, container) if isinstance(block, _Block))
    )
    for number, block in enumerate(_read_blocks(payload, container)):
        if isinstance(block, _TornContainerError):
            yield Malformed(b"", f"block {number} and what follows cannot be read: {block}"), b""
            return
        name = f"block {number} of {block.records} records"
        yield from reader.read_events(payload[block.begin : block.end], block.records, name)


class _BlockReader:
    """Reads the records of blocks by one schema, which is parsed once.

    fastavro gets a container that never ends: blocks are put behind its header as they come, inflated.
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
        """The records of a block: all of them or none, since where one is damaged so may be those before it.

        Raises:
            Exceeded: max_values.
        """
        try:
            records = self._read_records(self._inflate(content, count), count)
        except ContentTooLarge as error:
            over = self._budget.exceeded_error("max_held_bytes", f"{name} {error}, for what its values may take")
            yield over_budget_event(over), b""
        except BudgetExceededError as over:
            if over.path != "max_held_bytes":
                raise
            yield over_budget_event(over), b""
        except Exception as error:  # whatever the bytes lead the codec or the reader into
            yield Malformed(b"", f"{name} cannot be read: {_describe_error(error)}"), b""
        else:
            yield from map(record_to_event, records)

    def _inflate(self, content: bytes, count: int) -> bytes:
        cost = self._container.cost
        # However many items arrays have, they come out of the content.
        most_bytes = self._budget.max_held_bytes // (BYTES_PER_VALUE * cost.values_per_byte + 2)
        inflated = CODECS[self._container.codec](content, most_bytes)
        if count * cost.min_bytes > len(inflated):
            raise _TornContainerError(f"it has {len(inflated)} bytes, and a record at least {cost.min_bytes}")
        values_made = count * cost.values + len(inflated) * cost.values_per_byte
        self._budget.check_memory(len(inflated), values_made)
        self._budget.reserve_values(values_made)
        return inflated

    def _read_records(self, content: bytes, count: int) -> list[Any]:
        self._feed.seek(0)
        self._feed.truncate()
        self._feed.write(b"".join((_encode_long(count), _encode_long(len(content)), content, self._container.sync)))
        self._feed.seek(0)
        block: Any = next(self._blocks)
        records = list(block)
        left = len(content) - block.bytes_.tell()
        if left:
            raise _TornContainerError(f"{left} bytes are left behind its records")
        return records


def _or_raw_value(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader of a logical type that gives what stands for a value it has no room for, such as an instant beyond the
    year 9999: a misfit of the column that it is for, and of no other record. A type that lacks what it has to declare,
    such as a decimal its precision, is none: its values are what they are written as."""

    def read_or_raw(value: Any, *schemas: Any) -> Any:
        try:
            return read(value, *schemas)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return value

    return read_or_raw


LOGICAL_READERS.update({name: _or_raw_value(read) for name, read in LOGICAL_READERS.items()})


def _read_header(payload: bytes) -> _Container:
    """The header of a container.

    Raises:
        Misfit: the schema is no record, or has no bound.
        Exception: the header is damaged.
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
        raise _TornContainerError("it ends inside its header")
    written = metadata[b"avro.schema"]
    if len(written) > _MAX_SCHEMA_BYTES:
        raise _TornContainerError(f"its schema has {len(written)} bytes")
    schema = orjson.loads(written)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "its Avro schema is no record")
    codec = metadata.get(b"avro.codec", b"null").decode()
    if codec not in CODECS:
        raise _TornContainerError(f"its codec {codec[:40]!r} is none that is read: {', '.join(CODECS)}")
    return _Container(schema, codec, schema_cost(schema), sync, offset + _SYNC_BYTES)


def _read_blocks(payload: bytes, container: _Container) -> Iterator[_Block | _TornContainerError]:
    """The blocks, as their heads say, and what is wrong where one is torn; nothing follows then."""
    offset = container.start
    while offset < len(payload):
        try:
            records, begin = _read_long(payload, offset)
            size, begin = _read_long(payload, begin)
        except _TornContainerError as error:
            yield error
            return
        end = begin + size
        if records < 0 or size < 0 or payload[end : end + _SYNC_BYTES] != container.sync:
            yield _TornContainerError("its end is not where its head says")
            return
        yield _Block(records, begin, end)
        offset = end + _SYNC_BYTES


def _read_long(payload: bytes, offset: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    number = 0
    for index, byte in enumerate(payload[offset : offset + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), offset + index + 1
    raise _TornContainerError("it ends inside a number, or a number has no end")


def _read_bytes(payload: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _read_long(payload, offset)
    if not 0 <= size <= len(payload) - offset:
        raise _TornContainerError("it ends inside its header")
    return payload[offset : offset + size], offset + size


def _encode_long(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    number, parts = number << 1, bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _describe_error(error: Exception) -> str:
    """What went wrong, the same whenever the bytes are read: fastavro names the stream it read from by its address."""
    return f"{type(error).__name__}: {_STREAM_REPR.sub('', str(error))}"[:200]
