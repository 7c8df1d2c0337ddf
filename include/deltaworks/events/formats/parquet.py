"""Reads the rows of Parquet objects as events, with values as in JSON.

The row counts, value counts and sizes in the footer are checked against the budgets before any page is read. Rows are
then read in small batches. Texts are dictionary-encoded, so the size of rows is known before they are created.

The footer is parsed here, without Arrow, from Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). Arrow's accessors of column
metadata (`RowGroupMetaData.column`) abort the process if the metadata is inconsistent, which a few corrupt bytes can
cause; reading rows raises an error instead. As in Thrift's own readers, a field of an unexpected type is skipped, and
the last of duplicate fields wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltaworks.events.budget import Budget, BudgetExceededError, FramedEvent, over_budget_event
from deltaworks.events.erasure_tombstones import ERASED_FIELD, tombstone_or_row
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.value_conversion import record_to_event
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.tables.files import open_parquet

# Reading the footer.

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
                groups = reader.read_items(lambda: _read_row_group_statistics(reader))
            else:
                reader.skip(kind)
    except IndexError:
        raise ValueError("its footer is truncated") from None
    return groups


def _read_row_group_statistics(reader: _ThriftReader) -> RowGroup:
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
        # A type of 0 ends the struct, also in the header of a field, as in Thrift's own readers.
        while (head := self._read_byte()) & 15:
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


# Reading rows.

MAGIC = b"PAR1"
_TEXT_TYPES = frozenset({"NONE", "STRING", "ENUM", "JSON", "BSON"})
_MAX_BATCH_ROWS = 10_000
#: Maximum text bytes of the rows that are created together.
_MAX_BATCH_TEXT_BYTES = 16 << 20


def read_events(payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
    """Yields every row as an event.

    Yields one `Malformed` per row that has no JSON form, one for the rest of an unreadable row group, and one
    `OverBudget` per row group that would take too much memory.

    Raises:
        ConversionError: the object is not Parquet, or its end with the footer is missing.
        BudgetExceededError: max_records, max_values.
    """
    if not payload.startswith(MAGIC):
        raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, "it does not start with Parquet's magic bytes")
    try:
        file = open_parquet(pa.BufferReader(payload))
        texts = _text_columns(file.metadata)
        with_dictionaries = open_parquet(
            pa.BufferReader(payload), metadata=file.metadata, read_dictionary=texts, page_checksum_verification=True
        )
        target = _plain_schema(file)
        groups = read_row_groups(payload)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConversionError(ReasonCode.OBJECT_UNREADABLE, f"its Parquet footer is unreadable: {error}") from None
    if len(groups) != file.num_row_groups:
        raise ConversionError(ReasonCode.OBJECT_UNREADABLE, "its Parquet footer is ambiguous")
    budget.check_announced_records(sum(group.rows for group in groups))
    budget.reserve_values(sum(group.values for group in groups))
    for number, group in enumerate(groups):
        yield from _read_row_group(with_dictionaries, target, number, group, budget)


def _text_columns(metadata: Any) -> list[str]:
    """Returns the paths of text and binary columns.

    Raises:
        ConversionError: a column is nested too deeply.
    """
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    for column in columns:
        if column.path.count(".") > _MAX_LEVELS:
            raise ConversionError(ReasonCode.OBJECT_UNREADABLE, f"its columns are nested more than {_MAX_LEVELS} deep")
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _TEXT_TYPES
    ]


def _plain_schema(file: pq.ParquetFile) -> pa.Schema:
    """Returns the schema in types whose values Python's own types hold, on every level of nesting.

    Times have microseconds. Enumerated values are text; Arrow reads them as bytes.
    """
    columns = (file.metadata.schema.column(number) for number in range(file.metadata.num_columns))
    schema = file.schema_arrow
    return pa.schema([field.with_type(_plain_type(field.type, columns)) for field in schema], schema.metadata)


def _plain_type(kind: pa.DataType, columns: Iterator[Any]) -> pa.DataType:
    """Returns the plain form of a type.

    Args:
        columns: the file's columns that are not read yet; a type takes one for each leaf.
    """
    if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, columns)) for field in kind.fields])
    if pa.types.is_map(kind):
        key, item = _plain_type(kind.key_type, columns), _plain_type(kind.item_type, columns)
        # A structured key cannot be the name of a field.
        return pa.list_(pa.struct({"key": key, "value": item})) if pa.types.is_nested(key) else pa.map_(key, item)
    if pa.types.is_nested(kind) and not pa.types.is_dictionary(kind):
        return _plain_list(kind, kind.value_field.with_type(_plain_type(kind.value_type, columns)))
    column = next(columns, None)
    return _plain_leaf(kind, is_text=column is not None and column.logical_type.type == "ENUM")


def _plain_list(kind: pa.DataType, item: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(item)
    # Arrow cannot cast list views.
    return pa.list_(item) if pa.types.is_list(kind) else kind


def _plain_leaf(kind: pa.DataType, *, is_text: bool) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    return pa.duration("us") if pa.types.is_duration(kind) else kind


def _read_row_group(
    file: pq.ParquetFile, target: pa.Schema, number: int, group: RowGroup, budget: Budget
) -> Iterator[FramedEvent]:
    """Yields the rows of a row group, and at its unreadable end one event that stands for the rest of its rows."""
    rows = 0
    try:
        # Pages are inflated one at a time, and none is larger than its row group.
        budget.check_memory(group.bytes // 2, 0)
        # All items of a list column may be in one row.
        values_per_row = -(-group.values // max(1, group.rows * file.metadata.num_columns))
        for batch in file.iter_batches(max(1, _MAX_BATCH_ROWS // max(1, values_per_row)), row_groups=[number]):
            for part in _split_by_text_bytes(batch):
                yield from _to_events(part.cast(target, safe=False))
                rows += part.num_rows
        # Arrow ends a row group silently if a page contradicts its dictionary.
        if rows < group.rows:
            raise pa.ArrowInvalid(f"it ends after {rows} of {group.rows} rows")
    except BudgetExceededError as over:
        yield over_budget_event(over, events=max(1, group.rows - rows)), b""
    except (pa.ArrowException, OSError) as error:
        detail = f"row group {number} of {file.num_row_groups} is unreadable: {error}"
        yield Malformed(b"", detail, events=max(1, group.rows - rows)), b""


def _split_by_text_bytes(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits rows into batches with a bounded size of texts. The dictionary stores a repeated text once, but rows do
    not.
    """
    if rows.num_rows > 1 and sum(map(_text_bytes, rows.columns)) > _MAX_BATCH_TEXT_BYTES:
        half = rows.num_rows // 2
        yield from _split_by_text_bytes(rows.slice(0, half))
        yield from _split_by_text_bytes(rows.slice(half))
    else:
        yield rows


def _text_bytes(array: pa.Array) -> int:
    """Returns the total size of an array's texts, repeated ones included."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary) if len(array.dictionary) else pa.array([], pa.int32())
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(_text_bytes, array.flatten()))
    if pa.types.is_map(kind):
        return _text_bytes(_sliced_items(array, array.keys)) + _text_bytes(_sliced_items(array, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _text_bytes(_sliced_items(array, array.values))
    return 0


def _sliced_items(array: pa.Array, items: pa.Array) -> pa.Array:
    """Returns the list items that belong to a slice of a list array."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return items.slice(first, last - first)


def _to_events(rows: pa.RecordBatch) -> Iterator[FramedEvent]:
    """Converts rows to events. If some row fails, rows are converted one by one, so that only failing rows are
    `Malformed`.
    """
    try:
        values = rows.to_pylist(maps_as_pydicts="lossy")
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        if rows.num_rows == 1:
            raw = record_to_event(dict(zip(rows.schema.names, map(_cell_or_error_text, rows.columns), strict=True)))[1]
            yield Malformed(raw, f"a row has an invalid value: {error}"), raw
            return
        half = rows.num_rows // 2
        yield from _to_events(rows.slice(0, half))
        yield from _to_events(rows.slice(half))
        return
    if ERASED_FIELD in rows.schema.names:
        values = list(map(tombstone_or_row, values))
    yield from map(record_to_event, values)


def _cell_or_error_text(cell: pa.Array) -> Any:
    """Returns the only value of an array, or the error's text, for messages."""
    try:
        return cell.to_pylist(maps_as_pydicts="lossy")[0]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        return f"({cell.type}: {error})"
