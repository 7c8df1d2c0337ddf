"""Tables made quickly, file by file, for tests of what maintenance chooses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties

from deltaworks.control import paths
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import Partition
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path

COLUMNS = {"event_date": "date", "id": "string", "value": "long"}
FIRST = dt.date(2026, 1, 1)
#: The partitions of days, from FIRST on.
DAYS: tuple[Partition, ...] = tuple((("event_date", str(FIRST + dt.timedelta(days=number))),) for number in range(60))


def make(lake: Lake, pipeline: str, table: str, *, files: int, days: int, columns: dict[str, str] | None = None) -> str:
    """A table with so many files in each of its days; returns its key."""
    key = paths.table(pipeline, table)
    made = user_metadata(pipeline=pipeline, batch=0, operation="create_table")
    lake.ensure(key, arrow_schema(columns or COLUMNS), user_metadata=made, partition_by=["event_date"])
    append(lake, key, files, days=range(days))
    return key


def append(lake: Lake, key: str, files: int, *, days: Iterable[int] = (0,)) -> None:
    """So many more files of ten rows into each of these days, as one commit."""
    table = lake.open(key)
    assert table is not None
    schema = pa.schema(table.schema().to_arrow())
    written = []
    for day in days:
        date = FIRST + dt.timedelta(days=day)
        rows = pa.table({field.name: _values(field, date) for field in schema}, schema=schema)
        place = {"event_date": str(date)}
        written += [
            write_file(lake.filesystem, arrow_path(lake.storage, key), rows, partition=place) for _ in range(files)
        ]
    table.create_write_transaction(
        [file.add_action() for file in written],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
    )


def _values(field: pa.Field, date: dt.date) -> list[object]:
    if field.name == "event_date":
        return [date] * 10
    if pa.types.is_string(field.type):
        return [f"{field.name}{number * 7 % 10}" for number in range(10)]
    return [number for number in range(10)] if pa.types.is_integer(field.type) else [None] * 10


def compacted(lake: Lake, key: str, group: str) -> None:
    """Merge the files of each partition in a commit that carries the name of an OPTIMIZE command."""
    made = user_metadata(pipeline="shop", batch="1", operation=OPTIMIZE, group=group)
    table = lake.open(key)
    assert table is not None
    table.optimize.compact(commit_properties=CommitProperties(custom_metadata={"userMetadata": made}))
