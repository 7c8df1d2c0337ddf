"""How old the data of a table are, by its Delta log alone.

Two times, since either one deceives: the newest moment that rows are of, which late data do not move, and the last
commit that changed rows, which OPTIMIZE and its like do not move.
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

#: Commits that are read, from the newest on, for one that changed rows. Older ones are not looked at.
_MAX_COMMITS = 32
_TIME_COLUMN = "event_time"


@dataclass(frozen=True, slots=True)
class TableAge:
    """When a table's newest row is of, and when its rows last changed; None where the log does not say."""

    table: str
    newest_row_at: dt.datetime | None
    last_change_at: dt.datetime | None


def table_age(lake: Lake, key: str, name: str) -> TableAge | None:
    """The age of the table at `key`; None where there is no table.

    The newest row is of the greatest `event_time`, or of the first column of type timestamp that has statistics; by a
    date, of its end. No row is of a time after it was written, whatever a producer's clock said.
    """
    table = lake.open(key)
    return None if table is None else age_of(lake, key, name, table)


def age_of(lake: Lake, key: str, name: str, table: DeltaTable) -> TableAge:
    """The age of a table as it is open."""
    commits = commit_history(lake, key, newest=table.version(), limit=_MAX_COMMITS)
    written_at = next((commit.at for commit in commits if commit.changes_rows), None)
    times = [at for at in (_max_time(table), written_at) if at is not None]
    return TableAge(name, min(times, default=None), written_at)


def newest_row_time(ages: Iterable[TableAge]) -> dt.datetime | None:
    """The newest moment that rows of any of these tables are of."""
    return max((age.newest_row_at for age in ages if age.newest_row_at is not None), default=None)


def _max_time(table: DeltaTable) -> dt.datetime | None:
    files = pa.table(table.get_add_actions(flatten=True))
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
    """A timestamp in UTC; the end of a date."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    # Of the last date there is, its beginning.
    start = dt.datetime.combine(value, dt.time(), tzinfo=dt.UTC)
    return start if value == dt.date.max else start + dt.timedelta(days=1)
