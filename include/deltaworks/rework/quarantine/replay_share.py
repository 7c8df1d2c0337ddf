"""What a replay adds to one table: its files, without the rows whose place the table has by then.

An event may have come another way since the replay was prepared, by reprocessing its object. So what is added is
decided against the very snapshot it is committed to, as a step is: no lease and no clock comes into it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from deltaworks.control.records.prepared import PreparedTable
from deltaworks.events.origins import ROW_KEY_COLUMNS, RowKey, row_keys
from deltaworks.tables.files import WrittenFile, write_file
from deltaworks.tables.lake import Lake, arrow_path, rows_of


class ReplayShare:
    """One table's share of a prepared replay. `rows` is what was offered to the table last."""

    def __init__(self, lake: Lake, key: str, share: PreparedTable) -> None:
        self._lake = lake
        self._root = arrow_path(lake.storage, key)
        self._files = [WrittenFile(**record) for record in share.files]
        self._places = [set(row_keys(self._read(file, list(ROW_KEY_COLUMNS)))) for file in self._files]
        self.rows = share.rows

    def _read(self, file: WrittenFile, columns: list[str] | None = None) -> pa.Table:
        with self._lake.filesystem.open_input_file(f"{self._root}/{file.path}") as source:
            return pq.read_table(source, columns=columns)

    def absent(self, table: DeltaTable) -> list[AddAction]:
        """The actions that add what this snapshot of the table has not."""
        seqs = sorted({seq for found in self._places for seq, _ in found})
        condition = ds.field("_seq").isin(pa.array(seqs, pa.int64()))
        present = set(row_keys(rows_of(table, columns=ROW_KEY_COLUMNS, filters=condition)))
        offered = [
            left
            for file, found in zip(self._files, self._places, strict=True)
            if (left := self._left(file, found, present)) is not None
        ]
        self.rows = sum(file.rows for file in offered)
        return [file.add_action() for file in offered]

    def _left(self, file: WrittenFile, found: set[RowKey], present: set[RowKey]) -> WrittenFile | None:
        """The file, one with fewer rows in its stead, or none."""
        if not found & present:
            return file
        if found <= present:
            return None
        rows = self._read(file)
        rows = rows.filter(pa.array([place not in present for place in row_keys(rows)], pa.bool_()))
        for column in file.partition:
            # Left out again where it is written: its value is in the action.
            rows = rows.append_column(column, pa.nulls(rows.num_rows))
        return write_file(self._lake.filesystem, self._root, rows, partition=file.partition)
