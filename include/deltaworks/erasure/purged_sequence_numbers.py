"""Records the collector sequence numbers of purged rows, so that the search for lost events does not report them."""

from __future__ import annotations

import pyarrow as pa

from deltaworks.erasure.purge_table import SequenceNumberRecorder
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.maintenance.lost_events import find_collected_table
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.query import QUARANTINE


def sequence_number_recorder(spec: PipelineSpec, table: str) -> SequenceNumberRecorder | None:
    """Returns the recorder for rows of a table; None if the table's sequence numbers are not checked for losses."""
    collected = find_collected_table(spec)
    if collected is None or table not in (collected.table, QUARANTINE):
        return None

    def record_from_columns(rows: pa.RecordBatch, numbers: CollectorSequenceNumbers) -> None:
        columns = (_column_values(rows, name) for name in (collected.collector_column, collected.seq_column))
        for process, seq in zip(*columns, strict=True):
            numbers.add(process, seq)

    def record_from_raw(rows: pa.RecordBatch, numbers: CollectorSequenceNumbers) -> None:
        for raw in _column_values(rows, "raw"):
            numbers.add_raw(raw.encode() if isinstance(raw, str) else b"")

    return record_from_raw if table == QUARANTINE else record_from_columns


def _column_values(rows: pa.RecordBatch, name: str) -> list[object]:
    """Returns the values of a column; nulls if the file was written before the table had the column."""
    if name not in rows.schema.names:
        return [None] * rows.num_rows
    values: list[object] = rows.column(name).to_pylist()
    return values
