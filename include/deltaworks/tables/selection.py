"""Selects rows of one table by a SQL condition with delta-rs' query engine, without a JVM.

pyarrow's dataset filters cannot be used, because they fail on the string statistics that delta-rs provides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows_where(table: DeltaTable, condition: str, *, columns: Sequence[str]) -> pa.Table:
    """Reads the given columns of the rows that match a condition, at the table's open version.

    Files are skipped by their statistics.

    Args:
        condition: in DataFusion's SQL; use `sql_one_of` for values from users.
    """
    query = f"SELECT {', '.join(columns)} FROM t WHERE {condition}"
    return pa.table(QueryBuilder().register("t", table).execute(query).read_all())


def sql_one_of(column: str, values: Collection[str]) -> str:
    """Returns the SQL condition that a column has one of these values. Values are quoted, so they cannot inject SQL."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in sorted(values))
    return f"{column} IN ({quoted})" if values else "false"
