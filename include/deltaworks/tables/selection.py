"""Rows of one table that meet a condition in SQL, by delta-rs' own query engine; needs no JVM.

Not through pyarrow's datasets, whose filters fail on the bounds of texts that delta-rs gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows_where(table: DeltaTable, condition: str, *, columns: Sequence[str]) -> pa.Table:
    """The columns, of rows that meet the condition, of an open table as it is in memory. Files are left out by bounds.

    Args:
        condition: in DataFusion's SQL; `one_of` makes one of values that somebody sent.
    """
    query = f"SELECT {', '.join(columns)} FROM t WHERE {condition}"
    return pa.table(QueryBuilder().register("t", table).execute(query).read_all())


def sql_one_of(column: str, values: Collection[str]) -> str:
    """The condition that a column has one of these values, whatever stands in them."""
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in sorted(values))
    return f"{column} IN ({quoted})" if values else "false"
