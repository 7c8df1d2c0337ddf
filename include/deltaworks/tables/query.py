"""SQL over the lake without a JVM: DuckDB, with every table by name.

DuckDB's own Delta extension is a download that fails without internet access; its views over deltalake's Arrow
datasets read the same snapshot, push filters and columns down, and need nothing more.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake, relation_of

#: Rows of quarantine that stand for a whole object: deleted, unreadable, empty or of another form than declared. They
#: are written with the batch that met the object, once, so they are a view and not a second record.
_FILE_QUARANTINE = """
    CREATE VIEW "{pipeline}"."file_quarantine" AS
    SELECT quarantine_date, object_key, reasons[1].code AS reason, reasons[1].detail AS detail, _ingested_at, _batch_id,
        _seq
    FROM "{pipeline}"."quarantine" WHERE _position = -1
"""
LEDGER_TABLES = ("checkpoint_store", "batch_metadata_store", "progress")


def connect(catalog: Catalog) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    """A connection in which `<pipeline>.<table>` is every table there is now, and their names.

    Gold, live, keyed, bronze and quarantine tables, `file_quarantine`, those that mutations keep, the ledger's and the
    progress table. Rows that a mutation has deleted are left out; `<table>_named` is a mutable table with the names its
    ids have. A snapshot: open a new connection to see what was committed since.
    """
    lake = Lake(catalog.environment.lake)
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    names = []
    for pipeline, spec in catalog.pipelines.items():
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{pipeline}"')
        declared = [table.name for table in spec.tables] + [table.name for table in spec.live]
        declared += [keyed.name for keyed in spec.keyed_tables]
        declared += [table.name for table in spec.gold.tables] + [*spec.own_tables]
        declared += [spec.mutations.names, spec.mutations.intervals] if spec.mutations is not None else []
        keys = {name: paths.table(pipeline, name) for name in declared}
        keys |= {name: paths.pipeline_control(pipeline, name) for name in LEDGER_TABLES}
        for name, key in keys.items():
            table = lake.open(key)
            if table is None:
                continue
            connection.register(f"{pipeline}__{name}", relation_of(table))
            mutable = any(field.name == DELETED_COLUMN for field in table.schema().fields)
            rows_left = f' WHERE NOT coalesce("{DELETED_COLUMN}", false)' if mutable else ""
            connection.execute(f'CREATE VIEW "{pipeline}"."{name}" AS SELECT * FROM "{pipeline}__{name}"{rows_left}')
            names.append(f"{pipeline}.{name}")
        if f"{pipeline}.quarantine" in names:
            connection.execute(_FILE_QUARANTINE.format(pipeline=pipeline))
            names.append(f"{pipeline}.file_quarantine")
        names += _with_names(connection, spec, names)
    return connection, names


def _with_names(connection: duckdb.DuckDBPyConnection, spec: PipelineSpec, there: Collection[str]) -> list[str]:
    """Make the views that show mutable tables with names; what is not named is shown by its id."""
    made = []
    for table in spec.tables:
        view = f"{table.name}_named"
        if table.mutable is None or f"{spec.pipeline}.{table.name}" not in there or f"{spec.pipeline}.{view}" in there:
            continue
        shown, joined = f'rows_."{table.mutable.id}"', ""
        if spec.mutations is not None and f"{spec.pipeline}.{spec.mutations.names}" in there:
            joined = (
                f'LEFT JOIN "{spec.pipeline}"."{spec.mutations.names}" AS names_ '
                f'ON names_."{ORG_COLUMN}" = rows_."{ORG_COLUMN}" AND names_.id = {shown}'
            )
            shown = f"coalesce(names_.name, {shown})"
        name_column = _name_column(table, table.mutable.id)
        connection.execute(
            f'CREATE VIEW "{spec.pipeline}"."{view}" AS SELECT rows_.*, {shown} AS "{name_column}" '
            f'FROM "{spec.pipeline}"."{table.name}" AS rows_ {joined}'
        )
        made.append(f"{spec.pipeline}.{view}")
    return made


def _name_column(table: TableSpec, id_column: str) -> str:
    """`contact_name` for `contact_id`, or a name that no column has."""
    preferred = f"{id_column.removesuffix('_id')}_name"
    return preferred if preferred not in table.column_types() else f"{id_column}_shown"
