"""Tables of intervals: rows that say what held from when to when, so that an as-of join is one by equality and range.

Such a table is held to `checks.intervals` before it is published, and what reads it onwards is rebuilt from the first
date at which two of its versions differ: by their rows, since any build of it writes all of its files again.
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

#: So many values of `by` are named of each kind of mistake.
_MAX_EXAMPLES = 3


def interval_failures(intervals: IntervalsSpec, answer: DataFrame) -> list[str]:
    """What the rows of an answer break of what intervals are, a sentence for each kind of mistake.

    Reads the answer once, ordered within each value of `by`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    start, end = F.col(intervals.start), F.col(intervals.end)
    ordered = Window.partitionBy(*intervals.by).orderBy(start.asc_nulls_first(), end.asc_nulls_last())
    following, last = F.lead(start).over(ordered), F.lead(F.lit(False), 1, True).over(ordered)
    problem = (
        F.when(start.isNull(), f"without {intervals.start}")
        .when(end.isNotNull() & (end <= start), f"where {intervals.end} does not lie behind {intervals.start}")
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
    """The first date of `column` among the rows that two versions of a table do not both have, as a change of it.

    Nothing has changed where both have the same rows, however often they were written again. All rows of both
    versions are read, by DuckDB.

    Args:
        before: the version that was read last; None where nothing is known of it.
    """
    if before is None:
        return Changes(is_unbounded=True, reason="no earlier version is known")
    # The log alone may show that no row was written; one that is cut off shows nothing, and then rows do.
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
    """The first date of the rows that differ, how many of them have none, and how many there are.

    Raises:
        ValueError: the table is gone, or has other columns.
        DeltaError, OSError, duckdb.Error: a version cannot be read any more.
    """
    # Loaded here: not every build compares versions.
    from deltaworks.tables.duckdb_session import duckdb_session

    with duckdb_session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        columns = []
        for name, version in (("before", before), ("after", after)):
            table = lake.open(key)
            if table is None:
                raise ValueError("it is no longer there")
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
