"""Creates tables file by file, for maintenance tests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import yaml
from deltalake import CommitProperties

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.maintenance.zorder_ledger import RewriteGroup, ZOrderLedger
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import Partition
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.testing import load_project, present

#: A pipeline declaration up to `tables`.
SHOP = """\
pipeline: shop
description: a shop
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
"""
#: Its bronze table.
ORDERS = "tables: [{name: orders, when: {name: order}}]\n"
#: A gold table and its SQL.
DAILY = """\
gold:
  tables: [{name: daily, sql: gold/daily.sql, reads: [orders], partition_by: event_date}]
"""
DAILY_SQL = {"gold/daily.sql": "SELECT event_date, count(*) AS n FROM orders GROUP BY event_date"}
COLUMNS = {"event_date": "date", "id": "string", "value": "long"}
FIRST = dt.date(2026, 1, 1)
#: Day partitions from FIRST.
DAYS: tuple[Partition, ...] = tuple((("event_date", str(FIRST + dt.timedelta(days=number))),) for number in range(60))


def project(
    folder: Path, *, sql: Mapping[str, str] | None = None, more_environment: str = "", **pipelines: str
) -> Catalog:
    """Returns a project of these declarations, with a lake in the folder; `sql` are the shop's files.

    Args:
        more_environment: further keys of the environment.
    """
    files = {f"pipelines/{name}/pipeline.yaml": text for name, text in pipelines.items()}
    files |= {f"pipelines/shop/{name}": text for name, text in (sql or {}).items()}
    environment = yaml.safe_load(more_environment)
    return load_project(folder / "project", lake=folder, environment=environment, files=files)


def make(lake: Lake, pipeline: str, table: str, *, files: int, days: int, columns: dict[str, str] | None = None) -> str:
    """Creates a table with a number of files per day; returns its key."""
    key = paths.table(pipeline, table)
    made = user_metadata(pipeline=pipeline, batch=0, operation="create_table")
    lake.ensure(key, arrow_schema(columns or COLUMNS), user_metadata=made, partition_by=["event_date"])
    append(lake, key, files, days=range(days))
    return key


def append(lake: Lake, key: str, files: int, *, days: Iterable[int] = (0,)) -> None:
    """Appends files of ten rows to each day, in one commit."""
    table = present(lake.open(key))
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
    """Merges the files of each partition in a commit named like an OPTIMIZE command."""
    made = user_metadata(pipeline="shop", batch="1", operation=OPTIMIZE, group=group)
    table = present(lake.open(key))
    table.optimize.compact(commit_properties=CommitProperties(custom_metadata={"userMetadata": made}))


#: The night; day 9 is still open.
NIGHT = dt.datetime(2026, 1, 10, 3, 30, tzinfo=dt.UTC)
TABLES = 100
#: Tables that need work: three closed, unordered partitions with several files each.
IN_NEED = tuple(f"t{number:03d}" for number in range(0, TABLES, 10))


def hundred_tables() -> str:
    """Declares a hundred tables; a fifth without Z-order."""
    tables = "\n".join(
        f"  - {{name: t{number:03d}, when: {{name: t{number:03d}}}"
        + (", zorder_by: [event_name]}" if number % 5 != 3 else "}")
        for number in range(TABLES)
    )
    return f"{SHOP}tables:\n{tables}\n"


def fill_hundred(lake: Lake, objects: ObjectStore, columns: dict[str, str]) -> None:
    """Fills ten tables that need work; others have one file per day, are ordered, open, small or missing."""
    ledger = ZOrderLedger(lake, PipelineHome(objects, "shop"))
    for number in range(TABLES):
        name, kind = f"t{number:03d}", number % 10
        if name in IN_NEED:
            make(lake, "shop", name, files=5, days=2, columns=columns)
        elif kind in (1, 2, 4):
            make(lake, "shop", name, files=1, days=2, columns=columns)
        elif kind in (5, 6):
            key = make(lake, "shop", name, files=4, days=1, columns=columns)
            left = RewriteGroup(
                name=name, table=name, action="zorder", columns=("event_name",), after_version=0, round="daily"
            )
            arranged(lake, key, name)
            ledger.record(left, ledger.rewritten(left), seconds=1.0)
        elif kind == 7:
            key = make(lake, "shop", name, files=1, days=1, columns=columns)
            append(lake, key, 9, days=(9,))
        elif kind in (3, 8):
            make(lake, "shop", name, files=3 if kind == 3 else 1, days=1, columns=columns)


def arranged(lake: Lake, key: str, group: str) -> None:
    """Commits an OPTIMIZE that leaves two of four files per partition."""
    made = user_metadata(pipeline="shop", batch="1", operation=OPTIMIZE, group=group)
    table = present(lake.open(key))
    properties = CommitProperties(custom_metadata={"userMetadata": made})
    size = max(pa.table(table.get_add_actions()).column("size_bytes").to_pylist())
    table.optimize.compact(target_size=2 * size + 1, commit_properties=properties)
