"""Collects small Spark results in the driver.

Results of Python workers are collected as bytes or JSON. By default Spark pickles them, and unpickling runs code that a
worker has chosen. Workers parse data of producers; the driver has the keys of the lake.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, is_absolute_path, parse_schema_string

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

#: Maximum number of rows collected in the driver. Spark's tasks write larger results.
MAX_COLLECTED_ROWS: Final = 200_000
_VARIANT: Final = re.compile(r'"(?:type|elementType|valueType)":\s*"variant"')


def collect_bytes(results: RDD[bytes]) -> list[bytes]:
    """Collects the bytes that Python workers return, without unpickling them."""
    from pyspark.serializers import NoOpSerializer

    collected: list[bytes] = results._reserialize(NoOpSerializer()).collect()
    return collected


def collect_json(results: RDD[Any]) -> list[Any]:
    """Collects the plain JSON values that Python workers return: tuples become lists, keys of objects texts."""
    return [json.loads(text) for text in collect_bytes(results.map(lambda value: json.dumps(value).encode()))]


def collect_rows(rows: DataFrame, schema_string: str, *, max_rows: int) -> pa.Table | None:
    """Collects rows as an Arrow table with the types of a Delta schema.

    Returns None if there are more than `max_rows`, a value does not fit its type, or the schema has variants, of which
    Spark cannot convert nulls.
    """
    if _VARIANT.search(schema_string):
        return None
    # LIMIT is applied by Spark, so excess rows never leave its tasks.
    table = rows.limit(max_rows + 1).toArrow()
    if table.num_rows > max_rows:
        return None
    try:
        return table.cast(parse_schema_string(schema_string))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None


def accepts_file_commits(lake: Lake, state: TableState, partition_by: str) -> bool:
    """Returns whether rows can be added to the table by writing data files and a commit, without Spark."""
    if state.metadata["partitionColumns"] != [partition_by] or any(is_absolute_path(path) for path, _ in state.files):
        return False
    opened = lake.open(state.key)
    return opened is not None and not reasons_against_rewriting(opened)
