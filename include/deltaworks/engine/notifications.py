"""Creates the rows of notification tables, which announce the rows that a batch adds to another table.

A notification has the new rows' keys, date and batch. It is committed with the batch, after the rows it announces. So
it never precedes its rows and is delivered exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from deltaworks.specs.mutation import KEYS_PER_NOTIFICATION, NOTIFICATION_COLUMNS, ChangeNotificationSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.files import group_rows

#: Number of buffered rows at which notifications are created.
BUFFERED_ROWS = 500_000
INSERT_CHANGE, STREAM_BATCH = "insert", "stream"
_KEY = "\0key"


def notification_tables_by_source(spec: PipelineSpec) -> Mapping[str, tuple[str, ...]]:
    """Returns the notification tables by the name of the table that they announce."""
    by_table: dict[str, tuple[str, ...]] = {}
    for table in spec.tables:
        if table.announces is not None:
            by_table[table.announces.table] = (*by_table.get(table.announces.table, ()), table.name)
    return by_table


def source_by_notification_table(spec: PipelineSpec) -> Mapping[str, str]:
    """Returns the announced table's name by notification table."""
    return {table.name: table.announces.table for table in spec.tables if table.announces is not None}


def with_notifications(spec: PipelineSpec, parts: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Yields the given rows of tables, followed by the notification rows that announce them.

    One notification covers all rows with equal copied columns, batch and arrival time.
    """
    buffers = {
        table.name: _NotificationBuffer(table, table.announces) for table in spec.tables if table.announces is not None
    }
    notification_tables = notification_tables_by_source(spec)
    for name, rows in parts:
        for notification_table in notification_tables.get(name, ()):
            buffers[notification_table].add(rows)
            if buffers[notification_table].rows >= BUFFERED_ROWS:
                yield notification_table, buffers[notification_table].flush()
        yield name, rows
    for notification_table, buffer in buffers.items():
        if buffer.rows:
            yield notification_table, buffer.flush()


class _NotificationBuffer:
    """Buffers rows of an announced table until their notifications are created."""

    def __init__(self, table: TableSpec, announces: ChangeNotificationSpec) -> None:
        self._schema = arrow_schema(table.column_types())
        self._copied_columns = [column.name for column in table.columns]
        self._key = announces.key
        self._parts: list[pa.Table] = []
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        columns = [*self._copied_columns, "_batch_id", "_ingested_at"]
        self._parts.append(rows.select(columns).append_column(_KEY, rows.column(self._key)))
        self.rows += rows.num_rows

    def flush(self) -> pa.Table:
        """Returns the notifications for the buffered rows and clears the buffer."""
        rows = pa.concat_tables(self._parts)
        self._parts, self.rows = [], 0
        group_columns = [*self._copied_columns, "_batch_id", "_ingested_at"]
        order, starts = group_rows(rows, group_columns, max_rows=KEYS_PER_NOTIFICATION)
        keys = rows.column(_KEY).take(pa.array(order)).combine_chunks()
        ends = np.append(starts[1:], len(order))
        firsts = rows.select(group_columns).take(pa.array(order[starts]))
        # A null key identifies no row, so each list contains only the other keys.
        has_key = keys.is_valid()
        key_offsets = np.concatenate([[0], np.cumsum(np.asarray(has_key))])
        lists = pa.ListArray.from_arrays(
            pa.array(np.append(key_offsets[starts], key_offsets[ends[-1]]), pa.int32()), keys.filter(has_key)
        )
        count = firsts.num_rows
        ingested_at = firsts.column("_ingested_at")
        generated: dict[str, pa.Array | pa.ChunkedArray] = {
            "ingested_at": ingested_at,
            "ingested_date": ingested_at.cast(pa.date32()),
            "change": pa.array([INSERT_CHANGE] * count, pa.string()),
            "keys": lists,
            "batch": firsts.column("_batch_id"),
            "batch_kind": pa.array([STREAM_BATCH] * count, pa.string()),
            "data_version": pa.nulls(count, pa.int64()),
        }
        columns = [firsts.column(name) for name in self._copied_columns] + [
            generated[name] for name in NOTIFICATION_COLUMNS
        ]
        return pa.Table.from_arrays(columns, names=self._schema.names).cast(self._schema)
