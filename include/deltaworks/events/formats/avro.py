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
from deltaworks.events.formats.avro_schema import Cost, cost_of
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.values import event_of
from deltaworks.events.reasons import ReasonCode

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_LONGEST_NUMBER = 10
_MOST_SCHEMA_BYTES = 4 << 20
#: How fastavro's errors name what it read from.
_STREAM = re.compile(r"(?: from)? ?<[\w.]+ object at 0x[0-9a-fA-F]+>")


class _Torn(ValueError):
    """The container does not go on as one does."""


@dataclass(frozen=True, slots=True)
class _Container:
    """What the header says: its bytes with the codec replaced by none, and where the first block begins."""

    schema: Any
    codec: str
    cost: Cost
    sync: bytes
    start: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Where the content of a block lies, and how many records it announces."""

    records: int
    begin: int
    end: int


def values(payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
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
        container = _container(payload)
        reader = _BlockReader(container, budget)
    except ConversionError:
        raise
    except Exception as error:  # whatever the bytes of a damaged header lead the reader into
        raise ConversionError(
            ReasonCode.OBJECT_UNREADABLE, f"its Avro header cannot be read: {_described(error)}"
        ) from None
    budget.check_announced_records(
        sum(block.records for block in _blocks(payload, container) if isinstance(block, _Block))
    )
    for number, block in enumerate(_blocks(payload, container)):
        if isinstance(block, _Torn):
            yield Malformed(b"", f"block {number} and what follows cannot be read: {block}"), b""
            return
        name = f"block {number} of {block.records} records"
        yield from reader.events(payload[block.begin : block.end], block.records, name)


class _BlockReader:
    """Reads the records of blocks by one schema, which is parsed once.

    fastavro gets a container that never ends: blocks are put behind its header as they come, inflated.
    """

    def __init__(self, container: _Container, budget: Budget) -> None:
        header = {"avro.schema": orjson.dumps(container.schema), "avro.codec": b"null"}
        parts = [MAGIC, _written(len(header))]
        for key, value in header.items():
            parts += [_written(len(key)), key.encode(), _written(len(value)), value]
        self._feed = io.BytesIO(b"".join([*parts, b"\0", container.sync]))
        self._container = container
        self._budget = budget
        self._blocks = fastavro.block_reader(self._feed, handle_unicode_errors="surrogateescape")

    def events(self, content: bytes, count: int, name: str) -> Iterator[FramedEvent]:
        """The records of a block: all of them or none, since where one is damaged so may be those before it.

        Raises:
            Exceeded: max_values.
        """
        try:
            records = self._records(self._inflated(content, count), count)
        except ContentTooLarge as error:
            over = self._budget.exceeded_error("max_held_bytes", f"{name} {error}, for what its values may take")
            yield over_budget_event(over), b""
        except BudgetExceededError as over:
            if over.path != "max_held_bytes":
                raise
            yield over_budget_event(over), b""
        except Exception as error:  # whatever the bytes lead the codec or the reader into
            yield Malformed(b"", f"{name} cannot be read: {_described(error)}"), b""
        else:
            yield from map(event_of, records)

    def _inflated(self, content: bytes, count: int) -> bytes:
        cost = self._container.cost
        # However many items arrays have, they come out of the content.
        most_bytes = self._budget.max_held_bytes // (BYTES_PER_VALUE * cost.values_per_byte + 2)
        inflated = CODECS[self._container.codec](content, most_bytes)
        if count * cost.least_bytes > len(inflated):
            raise _Torn(f"it has {len(inflated)} bytes, and a record at least {cost.least_bytes}")
        values_made = count * cost.values + len(inflated) * cost.values_per_byte
        self._budget.check_memory(len(inflated), values_made)
        self._budget.reserve_values(values_made)
        return inflated

    def _records(self, content: bytes, count: int) -> list[Any]:
        self._feed.seek(0)
        self._feed.truncate()
        self._feed.write(b"".join((_written(count), _written(len(content)), content, self._container.sync)))
        self._feed.seek(0)
        block: Any = next(self._blocks)
        records = list(block)
        left = len(content) - block.bytes_.tell()
        if left:
            raise _Torn(f"{left} bytes are left behind its records")
        return records


def _or_as_it_is(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader of a logical type that gives what stands for a value it has no room for, such as an instant beyond the
    year 9999: a misfit of the column that it is for, and of no other record. A type that lacks what it has to declare,
    such as a decimal its precision, is none: its values are what they are written as."""

    def tolerant(value: Any, *schemas: Any) -> Any:
        try:
            return read(value, *schemas)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return value

    return tolerant


LOGICAL_READERS.update({name: _or_as_it_is(read) for name, read in LOGICAL_READERS.items()})


def _container(payload: bytes) -> _Container:
    """The header of a container.

    Raises:
        Misfit: the schema is no record, or has no bound.
        Exception: the header is damaged.
    """
    place, metadata = len(MAGIC), {}
    while True:
        count, place = _number(payload, place)
        if count == 0:
            break
        if count < 0:
            _, place = _number(payload, place)
        for _ in range(abs(count)):
            key, place = _text(payload, place)
            metadata[key], place = _text(payload, place)
    sync = payload[place : place + _SYNC_BYTES]
    if len(sync) < _SYNC_BYTES:
        raise _Torn("it ends inside its header")
    written = metadata[b"avro.schema"]
    if len(written) > _MOST_SCHEMA_BYTES:
        raise _Torn(f"its schema has {len(written)} bytes")
    schema = orjson.loads(written)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "its Avro schema is no record")
    codec = metadata.get(b"avro.codec", b"null").decode()
    if codec not in CODECS:
        raise _Torn(f"its codec {codec[:40]!r} is none that is read: {', '.join(CODECS)}")
    return _Container(schema, codec, cost_of(schema), sync, place + _SYNC_BYTES)


def _blocks(payload: bytes, container: _Container) -> Iterator[_Block | _Torn]:
    """The blocks, as their heads say, and what is wrong where one is torn; nothing follows then."""
    place = container.start
    while place < len(payload):
        try:
            records, begin = _number(payload, place)
            size, begin = _number(payload, begin)
        except _Torn as error:
            yield error
            return
        end = begin + size
        if records < 0 or size < 0 or payload[end : end + _SYNC_BYTES] != container.sync:
            yield _Torn("its end is not where its head says")
            return
        yield _Block(records, begin, end)
        place = end + _SYNC_BYTES


def _number(payload: bytes, place: int) -> tuple[int, int]:
    """The number at a place, and where it ends."""
    number = 0
    for index, byte in enumerate(payload[place : place + _LONGEST_NUMBER]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place + index + 1
    raise _Torn("it ends inside a number, or a number has no end")


def _text(payload: bytes, place: int) -> tuple[bytes, int]:
    size, place = _number(payload, place)
    if not 0 <= size <= len(payload) - place:
        raise _Torn("it ends inside its header")
    return payload[place : place + size], place + size


def _written(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    number, parts = number << 1, bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _described(error: Exception) -> str:
    """What went wrong, the same whenever the bytes are read: fastavro names the stream it read from by its address."""
    return f"{type(error).__name__}: {_STREAM.sub('', str(error))}"[:200]
