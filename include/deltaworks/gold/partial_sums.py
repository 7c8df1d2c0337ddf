"""Partial results of one mergeable gold table, by date, combined with those of new rows.

The answer of a date is computed from its partial results: one row a group with the sums, counts and extremes of all
rows so far, and for `count(DISTINCT ...)` the set of counted values, as hashes. Adding rows costs these rows and the
groups of their dates.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.specs.checks.portable_query import quoted_name
from deltaworks.specs.checks.refresh_class import DistinctCount, MergeableQuery
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.id_hashes import HashRuns, IdHashes, hash_ids

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Keys of the hashes of this process. Clients choose the values; without the keys two cannot be made to collide.
HASH_KEYS = (secrets.token_hex(8), secrets.token_hex(8))
_KEY = "k"


class PartialSums:
    """The partial results of one table. Used by one thread."""

    def __init__(self, query: MergeableQuery) -> None:
        self.query = query
        self._by_date: dict[dt.date, pa.Table] = {}
        self._counted: dict[tuple[dt.date, str], HashRuns] = {}
        self._groups = [name for name, _ in query.groups]

    def __contains__(self, date: dt.date) -> bool:
        return date in self._by_date

    @property
    def dates(self) -> list[dt.date]:
        """The dates that have begun."""
        return list(self._by_date)

    def begin(self, date: dt.date) -> None:
        """Begins a date without rows."""
        self.drop(date)
        self._by_date[date] = pa.table({})

    def drop(self, date: dt.date) -> None:
        """Removes a date."""
        self._by_date.pop(date, None)
        for distinct in self.query.distincts:
            self._counted.pop((date, distinct.name), None)

    def add(self, date: dt.date, rows: pa.Table) -> None:
        """Adds rows of a date that has begun. Rows have the columns of the query; timestamps are in UTC, without zone.

        Raises:
            duckdb.Error: a value does not fit its type.
        """
        with duckdb_session() as session:
            session.register("input_rows", rows)
            parts = [self._aggregate(session)]
            parts += [self._count_new_values(session, date, distinct) for distinct in self.query.distincts]
            parts = [part for part in (self._by_date[date], *parts) if part.num_rows]
            self._by_date[date] = self._combine(session, parts)

    def answer(self, dates: Iterable[dt.date]) -> pa.Table | None:
        """Returns the rows of the table for these dates; None without any.

        Raises:
            duckdb.Error: a value does not fit its type.
        """
        parts = [part for date in sorted(dates) if (part := self._by_date[date]).num_rows]
        if not parts:
            return None
        outputs = ", ".join(f"{sql} AS {quoted_name(name)}" for name, sql in self.query.outputs)
        counts = ", ".join(f"coalesce({distinct.name}, 0) AS {distinct.name}" for distinct in self.query.distincts)
        partials = f"(SELECT * {f'REPLACE ({counts})' if counts else ''} FROM partials)"
        with duckdb_session() as session:
            session.register("partials", pa.concat_tables(parts, promote_options="default"))
            return session.sql(f"SELECT {outputs} FROM {partials}").to_arrow_table()

    def _aggregate(self, session: DuckDBPyConnection) -> pa.Table:
        sums = [f"{partial.sql} AS {partial.name}" for partial in self.query.sums]
        return self._grouped(session, [f"{sql} AS {name}" for name, sql in self.query.groups], sums, "")

    def _grouped(
        self, session: DuckDBPyConnection, groups: list[str], aggregates: list[str], condition: str
    ) -> pa.Table:
        conditions = [f"({text})" for text in (self.query.where, condition) if text]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        places = ", ".join(str(place + 1) for place in range(len(groups)))
        columns = ", ".join((*groups, *aggregates))
        return session.sql(f"SELECT {columns} FROM input_rows {where} GROUP BY {places}").to_arrow_table()

    def _count_new_values(self, session: DuckDBPyConnection, date: dt.date, distinct: DistinctCount) -> pa.Table:
        """Returns the number of values a group that are new in the date."""
        groups = [f"{sql} AS {name}" for name, sql in self.query.groups]
        texts = " || ".join(
            f"coalesce({_delimited(sql)}, '-')" for sql in (*dict(self.query.groups).values(), distinct.sql)
        )
        values = self._grouped(session, [*groups, f"{texts} AS {_KEY}"], [], f"{distinct.sql} IS NOT NULL")
        high, low = hash_ids(values.column(_KEY), HASH_KEYS)
        counted = self._counted.setdefault((date, distinct.name), HashRuns())
        is_new = ~counted.contains(high, low)
        counted.add(IdHashes.from_hashes(high[is_new], low[is_new]))
        session.register("new_values", values.filter(pa.array(is_new)))
        groups_of_values, places = ", ".join(self._groups), ", ".join(str(n + 1) for n in range(len(self._groups)))
        return session.sql(
            f"SELECT {groups_of_values}, count(*) AS {distinct.name} FROM new_values GROUP BY {places}"
        ).to_arrow_table()

    def _combine(self, session: DuckDBPyConnection, parts: list[pa.Table]) -> pa.Table:
        if not parts:
            return pa.table({})
        for number, part in enumerate(parts):
            session.register(f"part_{number}", part)
        union = " UNION ALL BY NAME ".join(f"SELECT * FROM part_{number}" for number in range(len(parts)))
        present = {name for part in parts for name in part.column_names}
        columns = [
            *self._groups,
            *(f"{partial.combined_sql} AS {partial.name}" for partial in self.query.sums if partial.name in present),
            *(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in self._distinct_names(present)),
        ]
        places = ", ".join(str(place + 1) for place in range(len(self._groups)))
        combined = session.sql(f"SELECT {', '.join(columns)} FROM ({union}) GROUP BY {places}").to_arrow_table()
        for name in sorted({distinct.name for distinct in self.query.distincts} - present):
            combined = combined.append_column(name, pa.nulls(combined.num_rows, pa.int64()))
        return combined

    def _distinct_names(self, present: set[str]) -> list[str]:
        return [distinct.name for distinct in self.query.distincts if distinct.name in present]


def _delimited(sql: str) -> str:
    """Returns SQL of a value's text behind its length, so that texts of several values cannot run into each other."""
    return f"(length(CAST({sql} AS VARCHAR)) || ':' || CAST({sql} AS VARCHAR))"


def input_rows(batch: pa.Table, date: dt.date, date_column: str) -> pa.Table:
    """Returns rows of a file with the date of its partition, and timestamps without zone, which are in UTC."""
    columns: dict[str, Any] = {}
    for name in batch.column_names:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        columns[name] = column
    columns[date_column] = pa.repeat(pa.scalar(date, pa.date32()), batch.num_rows)
    return pa.table(columns)
