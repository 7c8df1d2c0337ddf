"""Where events and rows come from, as far as it is not in the events: object keys, records of streams, row keys.

A part `day=2026-01-31/` of an object's key is the field `day` below `_partition` of its events. What a record of a
stream says of itself is below `_record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

import pyarrow as pa

from deltaworks.specs.pipeline import PipelineSpec

PARTITION_FIELD, RECORD_FIELD = "_partition", "_record"
#: What Hive writes for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: The file event or record that a row came from, and the row's position in it. Unique in a table.
RowKey = tuple[int, int]
ROW_KEY_COLUMNS = ("_seq", "_position")


@lru_cache(maxsize=256)
def partition_fields(key: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The fields called `names` in a key, as texts; those that are absent or null there are skipped."""
    parts = dict(part.split("=", 1) for part in key.split("/")[:-1] if "=" in part)
    return {name: unquote(parts[name]) for name in names if parts.get(name, _NULL) not in (_NULL, "")}


def reads_record_fields(spec: PipelineSpec) -> bool:
    """Whether anything of the pipeline reads below `_record`; events are spared the fields otherwise."""
    paths = [*spec.event.time.path, spec.event.name.path, *spec.event.id]
    for table in spec.event_tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return any(path is not None and path.split(".")[0] == RECORD_FIELD for path in paths)


def row_keys(rows: pa.Table) -> list[RowKey]:
    """The key of every row."""
    return list(zip(*(rows.column(name).to_pylist() for name in ROW_KEY_COLUMNS), strict=True))
