"""Collects small Spark results in the driver, so that this process can write them instead of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, parse_schema_string
from deltaworks.tables.replace_where import reasons_against_replacing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Maximum rows collected in the driver. Larger results are written by Spark's tasks.
MAX_COLLECTED_ROWS: Final = 200_000


def collect_rows(rows: DataFrame, schema_string: str, *, max_rows: int) -> pa.Table | None:
    """Collects rows as Arrow, cast to the schema of a Delta log. None if there are more than `max_rows` or a cast
    fails.
    """
    # LIMIT is applied by Spark, so excess rows never leave its tasks.
    table = rows.limit(max_rows + 1).toArrow()
    if table.num_rows > max_rows:
        return None
    try:
        return table.cast(parse_schema_string(schema_string))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None


def accepts_file_commits(lake: Lake, state: TableState, partition_by: str) -> bool:
    """Returns whether writing to the table requires only data files and a commit."""
    if state.metadata["partitionColumns"] != [partition_by] or reasons_against_replacing(state):
        return False
    opened = lake.open(state.key)
    return opened is not None and not reasons_against_rewriting(opened)
