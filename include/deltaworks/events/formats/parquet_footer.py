"""Parses row group sizes from the footer of a Parquet object, without Arrow.

Arrow's accessors of column metadata (`RowGroupMetaData.column`) abort the process if the metadata is inconsistent,
which a few corrupt bytes can cause; reading rows raises an error instead. So the values needed for the budgets are
parsed here from Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). All other fields are skipped. As in
Thrift's own readers, a field of an unexpected type is skipped, and the last of duplicate fields wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

_TAIL_BYTES = 8
#: Thrift's own readers stop at 64 too.
_MAX_LEVELS = 64
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
#: Booleans are encoded in the type.
_FIXED_SIZES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
#: `FileMetaData.row_groups`; `RowGroup.columns`, `.total_byte_size` and `.num_rows`; `ColumnChunk.meta_data`;
#: `ColumnMetaData.num_values`.
_ROW_GROUPS, _COLUMNS, _TOTAL_BYTE_SIZE, _NUM_ROWS, _META_DATA, _NUM_VALUES = 4, 1, 2, 3, 3, 5


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Sizes of a row group: number of rows, number of values in all columns, and uncompressed bytes."""

    rows: int = 0
    values: int = 0
    bytes: int = 0


def read_row_groups(payload: bytes) -> list[RowGroup]:
    """Returns the row groups of a Parquet object, in order.

    Raises:
        ValueError: there is no valid footer.
    """
    length = int.from_bytes(payload[-_TAIL_BYTES:-4], "little")
    start = len(payload) - _TAIL_BYTES - length
    if len(payload) < _TAIL_BYTES or start < 0:
        raise ValueError("its last bytes do not give the footer's offset")
    reader = _ThriftReader(payload[start:-_TAIL_BYTES])
    groups: list[RowGroup] = []
    try:
        for field, kind in reader.read_fields():
            if (field, kind) == (_ROW_GROUPS, _LIST):
                groups = reader.read_items(lambda: _read_row_group(reader))
            else:
                reader.skip(kind)
    except IndexError:
        raise ValueError("its footer is truncated") from None
    return groups


def _read_row_group(reader: _ThriftReader) -> RowGroup:
    rows = values = size = 0
    for field, kind in reader.read_fields():
        if (field, kind) == (_COLUMNS, _LIST):
            values = sum(reader.read_items(lambda: max(0, _read_num_values(reader))))
        elif (field, kind) == (_TOTAL_BYTE_SIZE, _I64):
            size = reader.read_signed()
        elif (field, kind) == (_NUM_ROWS, _I64):
            rows = reader.read_signed()
        else:
            reader.skip(kind)
    # Negative numbers would cancel out those of other groups.
    return RowGroup(rows=max(0, rows), values=values, bytes=max(0, size))


def _read_num_values(reader: _ThriftReader) -> int:
    """Returns the number of values of a column chunk; 0 if its metadata is in another file."""
    values = 0
    for field, kind in reader.read_fields():
        if (field, kind) != (_META_DATA, _STRUCT):
            reader.skip(kind)
            continue
        for inner, inner_kind in reader.read_fields():
            if (inner, inner_kind) == (_NUM_VALUES, _I64):
                values = reader.read_signed()
            else:
                reader.skip(inner_kind)
    return values


class _ThriftReader:
    """Reads values of Thrift's compact protocol from bytes. Reading past the end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def read_fields(self) -> Iterator[tuple[int, int]]:
        """Yields (number, type) of each field of a struct. The caller must read or skip the field before the
        next one."""
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self.read_signed()
            yield number, head & 15

    def read_items(self, read: Callable[[], Item]) -> list[Item]:
        """Returns the items of a list, each read by `read`."""
        count, _ = self._read_list_head()
        return [read() for _ in range(count)]

    def read_signed(self) -> int:
        """Reads a signed integer of any width (zigzag varint)."""
        number = self._read_varint()
        return (number >> 1) ^ -(number & 1)

    def skip(self, kind: int, levels: int = _MAX_LEVELS) -> None:
        """Skips a value of type `kind`.

        Raises:
            ValueError: the type is unknown, or the value is nested too deeply.
        """
        if not levels:
            raise ValueError(f"its footer is nested more than {_MAX_LEVELS} deep")
        if kind in _FIXED_SIZES:
            self._advance(_FIXED_SIZES[kind])
        elif kind in (_I16, _I32, _I64):
            self._read_varint()
        elif kind == _BINARY:
            self._advance(self._read_varint())
        elif kind in (_LIST, _SET):
            self._skip_items(*self._read_list_head(), levels)
        elif kind == _MAP:
            self._skip_pairs(levels)
        elif kind == _STRUCT:
            for _, inner in self.read_fields():
                self.skip(inner, levels - 1)
        else:
            raise ValueError(f"its footer has a value of type {kind}, which Thrift does not define")

    def _skip_pairs(self, levels: int) -> None:
        if count := self._read_varint():
            kinds = self._read_byte()
            for _ in range(count):
                self._skip_items(1, kinds >> 4, levels)
                self._skip_items(1, kinds & 15, levels)

    def _skip_items(self, count: int, kind: int, levels: int) -> None:
        # Booleans in collections take one byte each.
        if kind in (_TRUE, _FALSE):
            self._advance(count)
        else:
            for _ in range(count):
                self.skip(kind, levels - 1)

    def _read_list_head(self) -> tuple[int, int]:
        head = self._read_byte()
        return (head >> 4 if head >> 4 < 15 else self._read_varint()), head & 15

    def _read_varint(self) -> int:
        number = shift = 0
        while (byte := self._read_byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("its footer has an integer of more than ten bytes")
        return number | byte << shift

    def _advance(self, count: int) -> None:
        self._offset += count
        if self._offset > len(self._data):
            raise IndexError

    def _read_byte(self) -> int:
        byte = self._data[self._offset]
        self._offset += 1
        return byte
