"""Rows of Spark's in the driver, where they are few: what is written by us instead of by Spark's own writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, parse_schema_string
from deltaworks.tables.replace_where import reasons_against_replacing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Rows that are gathered in the driver at most. More are written by Spark's tasks.
MAX_COLLECTED_ROWS: Final = 200_000


def collect_rows(rows: DataFrame, schema_string: str, *, max_rows: int) -> pa.Table | None:
    """The rows in Arrow, in the types of a log's schema; None where there are more, or a type has none in Arrow."""
    # The bound is Spark's to hold: what is more never leaves its tasks.
    table = rows.limit(max_rows + 1).toArrow()
    if table.num_rows > max_rows:
        return None
    try:
        return table.cast(parse_schema_string(schema_string))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None


def accepts_file_commits(lake: Lake, state: TableState, partition_by: str) -> bool:
    """Whether nothing is asked of a writer of the table but files, and a log of them."""
    if state.metadata["partitionColumns"] != [partition_by] or reasons_against_replacing(state):
        return False
    opened = lake.open(state.key)
    return opened is not None and not reasons_against_rewriting(opened)
