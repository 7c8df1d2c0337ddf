"""Interval tables: checks for gaps and overlaps, and row differences between two versions.

An interval table states which value was valid from when to when, for as-of joins. Every build rewrites all of its
files, so changes are found by comparing rows; readers are rebuilt from the first differing date.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from deltaworks.specs.gold import IntervalsSpec
from deltaworks.tables.changes import Changes, changed_partitions
from deltaworks.tables.lake import Lake, duckdb_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Number of keys listed per kind of problem.
_MAX_EXAMPLES = 3


def interval_failures(intervals: IntervalsSpec, answer: DataFrame) -> list[str]:
    """Returns the interval checks that a result fails, one sentence each.

    Scans the result once, ordered within each key.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    start, end = F.col(intervals.start), F.col(intervals.end)
    ordered = Window.partitionBy(*intervals.by).orderBy(start.asc_nulls_first(), end.asc_nulls_last())
    following, last = F.lead(start).over(ordered), F.lead(F.lit(False), 1, True).over(ordered)
    problem = (
        F.when(start.isNull(), f"without {intervals.start}")
        .when(end.isNotNull() & (end <= start), f"whose {intervals.end} is not after {intervals.start}")
        .when(~last & (end.isNull() | (end > following)), "that overlap the next")
        .when(~last & (end < following), "with a gap before the next")
    )
    texts = [F.col(name).cast("string") for name in intervals.by]
    invalid_rows = answer.select(*intervals.by, problem.alias("_mistake")).filter("_mistake IS NOT NULL")
    kinds = invalid_rows.groupBy("_mistake").agg(
        F.count(F.lit(1)).alias("_count"),
        F.slice(F.array_sort(F.collect_set(F.concat_ws(", ", *texts))), 1, _MAX_EXAMPLES).alias("_values"),
    )
    key_columns = ", ".join(intervals.by)
    return [
        f"{row['_count']} intervals {row['_mistake']}, of ({key_columns}) {'; '.join(row['_values'])}"
        for row in sorted(kinds.collect(), key=lambda row: str(row["_mistake"]))
    ]


def changes_by_row_diff(lake: Lake, key: str, *, column: str, before: int | None, after: int) -> Changes:
    """Compares the rows of two versions and returns the first date of `column` with a difference as a change.

    Rewritten but equal rows are no change. Reads all rows of both versions with DuckDB.

    Args:
        before: the version that was read last; None if it is unknown.
    """
    if before is None:
        return Changes(is_unbounded=True, reason="no earlier version is known")
    # Rows need not be read if the log shows that no data file changed.
    if before <= after and not changed_partitions(lake, key, after_version=before, up_to_version=after):
        return Changes()
    import duckdb

    try:
        first, undated, rows = _first_difference(lake, key, column, before, after)
    except (DeltaError, OSError, ValueError, duckdb.Error) as error:
        text = " ".join(str(error).split())[:200]
        return Changes(is_unbounded=True, reason=f"its versions {before} and {after} cannot be compared: {text}")
    if undated:
        return Changes(is_unbounded=True, reason=f"{undated} differing rows have no {column}")
    return Changes(frozenset([((column, str(first)),)])) if rows else Changes()


def _first_difference(lake: Lake, key: str, column: str, before: int, after: int) -> tuple[dt.date | None, int, int]:
    """Returns the first date with a different row, the number of different rows without a date, and their total number.

    Raises:
        ValueError: the table does not exist or its columns changed.
        DeltaError, OSError, duckdb.Error: a version can no longer be read.
    """
    # Imported here: few builds compare versions.
    from deltaworks.tables.duckdb_session import duckdb_session

    with duckdb_session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        columns = []
        for name, version in (("before", before), ("after", after)):
            table = lake.open(key)
            if table is None:
                raise ValueError("the table no longer exists")
            table.load_as_version(version)
            connection.register(name, duckdb_source(lake, table))
            columns.append([field.name for field in table.schema().fields])
        if columns[0] != columns[1]:
            raise ValueError("its columns changed")
        first, undated, rows = connection.execute(
            f"""
            WITH differing AS (
                (SELECT * FROM before EXCEPT ALL SELECT * FROM after)
                UNION ALL (SELECT * FROM after EXCEPT ALL SELECT * FROM before)
            )
            SELECT min("{column}")::DATE, count(*) FILTER ("{column}" IS NULL), count(*) FROM differing
            """
        ).fetchall()[0]
    return first, int(undated), int(rows)
