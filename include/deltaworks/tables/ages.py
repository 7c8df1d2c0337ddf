"""Age of a table's data, read from its Delta log alone.

There are two times. The time of the newest row, which late data does not change, and the time of the last commit that
changed rows, which OPTIMIZE does not change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

#: Maximum number of commits that are searched, from the newest, for one that changed rows.
_MAX_COMMITS = 32
_TIME_COLUMN = "event_time"


@dataclass(frozen=True, slots=True)
class TableAge:
    """Time of a table's newest row, and of the last commit that changed rows. None if the log does not record
    the time."""

    table: str
    newest_row_at: dt.datetime | None
    last_change_at: dt.datetime | None


def table_age(lake: Lake, key: str, name: str) -> TableAge | None:
    """Returns the age of the table at `key`, or None if the table does not exist.

    The newest row time is the maximum of `event_time`, or of the first timestamp column with statistics. A date counts
    as the end of its day. The result is never later than the commit that wrote the row, even if the producer's clock
    was fast.
    """
    table = lake.open(key)
    return None if table is None else open_table_age(lake, key, name, table)


def open_table_age(lake: Lake, key: str, name: str, table: DeltaTable) -> TableAge:
    """Returns the age of an open table."""
    commits = commit_history(lake, key, newest=table.version(), limit=_MAX_COMMITS)
    written_at = next((commit.at for commit in commits if commit.changes_rows), None)
    files = pa.table(table.get_add_actions(flatten=True))
    times = [at for at in (_max_time(table, files), written_at) if at is not None]
    # A table whose rows have all been deleted was changed, but has no newest row.
    return TableAge(name, min(times, default=None) if files.num_rows else None, written_at)


def newest_row_time(ages: Iterable[TableAge]) -> dt.datetime | None:
    """Returns the newest row time of all given tables, or None if no table has one."""
    return max((age.newest_row_at for age in ages if age.newest_row_at is not None), default=None)


def _max_time(table: DeltaTable, files: pa.Table) -> dt.datetime | None:
    column_names = [field.name for field in table.schema().fields]
    names = sorted(column_names, key=lambda name: name != _TIME_COLUMN)
    columns = [name for name in names if not name.startswith("_")]
    for is_time in (pa.types.is_timestamp, pa.types.is_date):
        for name in columns:
            for statistic in (f"max.{name}", f"partition.{name}"):
                if statistic in files.column_names and is_time(files.schema.field(statistic).type):
                    maximum = pc.max(files.column(statistic)).as_py()
                    if maximum is not None:
                        return _to_utc(maximum)
    return None


def _to_utc(value: dt.date) -> dt.datetime:
    """Converts a timestamp to UTC; a date becomes the end of its day."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    # The last representable date has no following day, so its beginning is used.
    start = dt.datetime.combine(value, dt.time(), tzinfo=dt.UTC)
    return start if value == dt.date.max else start + dt.timedelta(days=1)
