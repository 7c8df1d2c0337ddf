"""Rewrites data files of a prepared batch whose schema differs from the table's current schema.

A table may be suspended because a column's declared type differs from its type on disk. The fan-out then still writes
files with the declared type. After the declaration is corrected, committing these files unchanged would break readers.
So they are compared with the table, and rewritten if all values convert exactly.
"""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.errors import ContractError
from deltaworks.tables.files import WrittenFile, write_file
from deltaworks.tables.lake import Lake, arrow_path


def conform_prepared_table(
    lake: Lake, table: DeltaTable, batch: PreparedBatch, prepared_table: PreparedTable
) -> PreparedTable:
    """Returns the table's part of a prepared batch with files that match the table's schema, rewritten if necessary.

    Idempotent: files of an interrupted rewrite become orphans, and the step decides which files are committed.

    Raises:
        ContractError: PREPARED_FILES_INCOMPATIBLE, a value does not convert exactly or the table lacks a column.
    """
    key = paths.table(batch.pipeline, prepared_table.table)
    files = [WrittenFile(**record) for record in prepared_table.files]
    # The commit of the batch adds these columns to the table.
    new_columns = frozenset(str(record["name"]) for record in prepared_table.new_columns)
    conformed = [
        _conform_file(lake, table, key, file, batch_id=batch.batch_id, new_columns=new_columns) for file in files
    ]
    if conformed == files:
        return prepared_table
    return prepared_table.replace(files=tuple(asdict(file) for file in conformed))


def _conform_file(
    lake: Lake, table: DeltaTable, key: str, file: WrittenFile, *, batch_id: int, new_columns: frozenset[str]
) -> WrittenFile:
    root = arrow_path(lake.storage, key)
    on_disk = {field.name: field.type for field in table.schema().fields}
    with lake.filesystem.open_input_file(f"{root}/{file.path}") as source:
        schema = pq.read_schema(source)
    types = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    unknown = sorted(set(types) - set(on_disk) - new_columns)
    if unknown:
        raise _incompatible_files_error(table, batch_id, f"the table has no column {', '.join(unknown)}")
    different = [name for name, kind in types.items() if name in on_disk and on_disk[name] != kind]
    if not different:
        return file
    schema_on_disk = pa.schema(table.schema().to_arrow())
    with lake.filesystem.open_input_file(f"{root}/{file.path}") as source:
        rows = pq.read_table(source)
    for name in different:
        try:
            column = rows.column(name).cast(schema_on_disk.field(name).type, safe=True)
        except pa.ArrowException:
            # Arrow's message contains the value, so it is not chained.
            raise _incompatible_files_error(
                table, batch_id, f"{name} has a value that does not fit {on_disk[name]}"
            ) from None
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    for name, value in file.partition.items():
        rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.string()))
    return write_file(lake.filesystem, root, rows, partition=file.partition)


def _incompatible_files_error(table: DeltaTable, batch_id: int, why: str) -> ContractError:
    return ContractError(
        "PREPARED_FILES_INCOMPATIBLE",
        f"{table.table_uri}: files of batch {batch_id} do not match the table's schema: {why}.",
    )
