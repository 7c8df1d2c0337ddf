"""Notifications of the rows that a batch adds to a table, as rows of its notification tables: keys, day and batch.

They are written and committed with the batch they announce, after its other rows, so that a notification never comes
before those, and comes exactly once as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from deltaworks.specs.mutation import KEYS_PER_NOTIFICATION, NOTIFICATION_COLUMNS, AnnouncesSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.files import group_rows

#: Rows that are gathered before notifications of them are made.
GATHERED_ROWS = 500_000
INSERT, STREAM = "insert", "stream"
_KEY = "\0key"


def announcers(spec: PipelineSpec) -> Mapping[str, tuple[str, ...]]:
    """The notification tables of each table that has any."""
    by_table: dict[str, tuple[str, ...]] = {}
    for table in spec.tables:
        if table.announces is not None:
            by_table[table.announces.table] = (*by_table.get(table.announces.table, ()), table.name)
    return by_table


def announced(spec: PipelineSpec) -> Mapping[str, str]:
    """The table whose rows each notification table announces."""
    return {table.name: table.announces.table for table in spec.tables if table.announces is not None}


def with_announcements(spec: PipelineSpec, parts: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Rows of tables as they come, and behind them the rows of notification tables that announce them.

    A notification is of rows that agree in what it takes over from them, in their batch and their time of arrival.
    """
    gathering = {table.name: _Gathering(table, table.announces) for table in spec.tables if table.announces is not None}
    by_data = announcers(spec)
    for name, rows in parts:
        for announcer in by_data.get(name, ()):
            gathering[announcer].take(rows)
            if gathering[announcer].rows >= GATHERED_ROWS:
                yield announcer, gathering[announcer].notifications()
        yield name, rows
    for announcer, gathered in gathering.items():
        if gathered.rows:
            yield announcer, gathered.notifications()


class _Gathering:
    """Rows of one table on their way to becoming notifications in another."""

    def __init__(self, table: TableSpec, announces: AnnouncesSpec) -> None:
        self._schema = arrow_schema(table.column_types())
        self._taken_over = [column.name for column in table.columns]
        self._key = announces.key
        self._parts: list[pa.Table] = []
        self.rows = 0

    def take(self, rows: pa.Table) -> None:
        by = [*self._taken_over, "_batch_id", "_ingested_at"]
        self._parts.append(rows.select(by).append_column(_KEY, rows.column(self._key)))
        self.rows += rows.num_rows

    def notifications(self) -> pa.Table:
        """The notifications of the rows that were taken since the last call."""
        rows = pa.concat_tables(self._parts)
        self._parts, self.rows = [], 0
        by = [*self._taken_over, "_batch_id", "_ingested_at"]
        order, starts = group_rows(rows, by, max_rows=KEYS_PER_NOTIFICATION)
        keys = rows.column(_KEY).take(pa.array(order)).combine_chunks()
        ends = np.append(starts[1:], len(order))
        firsts = rows.select(by).take(pa.array(order[starts]))
        # A key that is null names no row; offsets of a list count values, so nulls are left out of each list.
        kept = keys.is_valid()
        before = np.concatenate([[0], np.cumsum(np.asarray(kept))])
        lists = pa.ListArray.from_arrays(
            pa.array(np.append(before[starts], before[ends[-1]]), pa.int32()), keys.filter(kept)
        )
        count = firsts.num_rows
        arrived = firsts.column("_ingested_at")
        own: dict[str, pa.Array | pa.ChunkedArray] = {
            "ingested_at": arrived,
            "ingested_date": arrived.cast(pa.date32()),
            "change": pa.array([INSERT] * count, pa.string()),
            "keys": lists,
            "batch": firsts.column("_batch_id"),
            "batch_kind": pa.array([STREAM] * count, pa.string()),
            "data_version": pa.nulls(count, pa.int64()),
        }
        columns = [firsts.column(name) for name in self._taken_over] + [own[name] for name in NOTIFICATION_COLUMNS]
        return pa.Table.from_arrays(columns, names=self._schema.names).cast(self._schema)
