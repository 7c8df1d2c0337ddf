"""Fits files that were written by one declaration to a table that has another by now.

A table is suspended, say, because a column's declared type is not the one on disk. The fan-out goes on writing files by
the declaration. Once the declaration is mended, those files hold the column in the wrong type: committed as they are,
they would break every reader. So they are compared with the table first, and rewritten where values convert exactly.
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


def fit_share(lake: Lake, table: DeltaTable, batch: PreparedBatch, share: PreparedTable) -> PreparedTable:
    """The share with files that fit the table: its own where they do, rewritten ones where they do not.

    Idempotent in effect: the files of a rewriting that was broken off are orphans, and the step decides what lands.

    Raises:
        ContractError: SHARE_DOES_NOT_FIT when a value does not convert exactly, or the table lacks a column.
    """
    key = paths.table(batch.pipeline, share.table)
    files = [WrittenFile(**record) for record in share.files]
    # Columns the batch found itself are added to the table with its commit.
    new_columns = frozenset(str(record["name"]) for record in share.new_columns)
    fitted = [_fit_file(lake, table, key, file, batch_id=batch.batch_id, new_columns=new_columns) for file in files]
    if fitted == files:
        return share
    return share.replace(files=tuple(asdict(file) for file in fitted))


def _fit_file(
    lake: Lake, table: DeltaTable, key: str, file: WrittenFile, *, batch_id: int, new_columns: frozenset[str]
) -> WrittenFile:
    root = arrow_path(lake.storage, key)
    on_disk = {field.name: field.type for field in table.schema().fields}
    with lake.filesystem.open_input_file(f"{root}/{file.path}") as source:
        schema = pq.read_schema(source)
    types = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    unknown = sorted(set(types) - set(on_disk) - new_columns)
    if unknown:
        raise _does_not_fit_error(table, batch_id, f"the table has no column {', '.join(unknown)}")
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
            # Arrow quotes the value that does not fit.
            raise _does_not_fit_error(
                table, batch_id, f"{name} has a value that does not fit {on_disk[name]}"
            ) from None
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    for name, value in file.partition.items():
        rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.string()))
    return write_file(lake.filesystem, root, rows, partition=file.partition)


def _does_not_fit_error(table: DeltaTable, batch_id: int, why: str) -> ContractError:
    return ContractError(
        "SHARE_DOES_NOT_FIT",
        f"{table.table_uri}: files that batch {batch_id} wrote do not fit the table: {why}.",
        hint="Give the table the column or type the batch was declared with, then resume it again.",
    )
