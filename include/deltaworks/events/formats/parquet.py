"""Reads the rows of Parquet objects as events, with values as in JSON.

The row counts, value counts and sizes in the footer are checked against the budgets before any page is read. Rows are
then read in small batches. Texts are dictionary-encoded, so the size of rows is known before they are created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltaworks.events.budget import Budget, BudgetExceededError, FramedEvent, over_budget_event
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.erasure_tombstones import ERASED_FIELD, tombstone_or_row
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.parquet_footer import RowGroup, read_row_groups
from deltaworks.events.formats.value_conversion import record_to_event
from deltaworks.events.reasons import ReasonCode

MAGIC = b"PAR1"
#: Maximum nesting. Converting to JSON is recursive, and Python's stack allows a few hundred levels.
_MAX_LEVELS = 64
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
        file = pq.ParquetFile(pa.BufferReader(payload))
        texts = _text_columns(file.metadata)
        with_dictionaries = pq.ParquetFile(
            pa.BufferReader(payload), metadata=file.metadata, read_dictionary=texts, page_checksum_verification=True
        )
        target = _to_microseconds(file.schema_arrow)
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


def _to_microseconds(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with timestamps in microseconds, the precision of Python's datetime."""
    for index, field in enumerate(schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            schema = schema.set(index, field.with_type(pa.timestamp("us", tz=field.type.tz)))
    return schema


def _read_row_group(
    file: pq.ParquetFile, target: pa.Schema, number: int, group: RowGroup, budget: Budget
) -> Iterator[FramedEvent]:
    """Yields the rows of a row group."""
    try:
        # Pages are inflated one at a time, and none is larger than its row group.
        budget.check_memory(group.bytes // 2, 0)
        # All items of a list column may be in one row.
        values_per_row = -(-group.values // max(1, group.rows * file.metadata.num_columns))
        rows = 0
        for batch in file.iter_batches(max(1, _MAX_BATCH_ROWS // max(1, values_per_row)), row_groups=[number]):
            rows += batch.num_rows
            for part in _split_by_text_bytes(batch):
                yield from _to_events(part.cast(target, safe=False))
        # Arrow ends a row group silently if a page contradicts its dictionary.
        if rows < group.rows:
            raise pa.ArrowInvalid(f"it ends after {rows} of {group.rows} rows")
    except BudgetExceededError as over:
        yield over_budget_event(over), b""
    except (pa.ArrowException, OSError) as error:
        yield Malformed(b"", f"row group {number} of {file.num_row_groups} is unreadable: {error}"), b""


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
