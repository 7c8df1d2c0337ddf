"""SQL over the lake without a JVM: DuckDB, with every table by name.

DuckDB's own Delta extension is a download that fails without internet access; its views over deltalake's Arrow
datasets read the same snapshot, push filters and columns down, and need nothing more.
"""

from __future__ import annotations

import duckdb

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

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

    Gold, live, bronze and quarantine tables, `file_quarantine`, the ledger's and the progress table. A snapshot: open a
    new connection to see what was committed since.
    """
    lake = Lake(catalog.environment.lake)
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    names = []
    for pipeline, spec in catalog.pipelines.items():
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{pipeline}"')
        declared = [table.name for table in spec.tables] + [table.name for table in spec.live]
        declared += [table.name for table in spec.gold.tables] + ["quarantine"]
        keys = {name: paths.table(pipeline, name) for name in declared}
        keys |= {name: paths.pipeline_control(pipeline, name) for name in LEDGER_TABLES}
        for name, key in keys.items():
            table = lake.open(key)
            if table is None:
                continue
            connection.register(f"{pipeline}__{name}", table.to_pyarrow_dataset())
            connection.execute(f'CREATE VIEW "{pipeline}"."{name}" AS SELECT * FROM "{pipeline}__{name}"')
            names.append(f"{pipeline}.{name}")
        if f"{pipeline}.quarantine" in names:
            connection.execute(_FILE_QUARANTINE.format(pipeline=pipeline))
            names.append(f"{pipeline}.file_quarantine")
    return connection, names
