"""The inputs of gold tables as views for their SQL: rows of some dates, without the copies producers sent twice.

A row is a copy when another row of the same key, at most `across_days` dates away, arrived before it (the lesser
`_seq`, then `_position`). That is decided by the neighbouring dates alone, so a rebuild of some dates agrees with a
rebuild of all. For tables with a grain the neighbouring hours decide, up to `across_hours` away. Where a table is
rebuilt by something else, copies are those of the same value. They are looked up once per input over narrow columns;
the SQL then reads the table without them. What several tables read of an input is read once, where it is little.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import TracebackType
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.gold.copies import ARRIVAL, Copies, around, copies_by_spark, hour_numbered, reach
from deltaworks.gold.event_keys import copies_by_driver
from deltaworks.gold.file_scan import Scan, added_files, rows_in, scanned_rows
from deltaworks.gold.inputs import PinnedInput
from deltaworks.gold.model_tables import scored_rows
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import DedupeSpec, view_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.lake import Lake

#: Rows of an input that several tables read are held in memory up to so many.
MOST_HELD_ROWS: Final = 1_000_000
_COUNT_ALL = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
#: What reads columns of a table that it does not name.
_READS_ALL = re.compile(r"\*|\|>|\b(?:natural|pivot|unpivot|table)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows of a part of an input, without copies, that are kept while tables are built; only some of its columns."""

    name: str
    part: Part
    rows: DataFrame

    def serves(self, name: str, part: Part, columns: Collection[str]) -> bool:
        """Whether these columns of that part can be taken from it."""
        return self.name == name and self.part.covers(part) and set(columns) <= set(self.rows.columns)


class InputViews:
    """Temporary views of the inputs, named as gold SQL names them. One build at a time per session."""

    def __init__(
        self, spark: SparkSession, lake: Lake, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._inputs = dict(inputs)
        self._dedupe = dedupe
        self._copies: dict[tuple[str, Part], Copies] = {}
        self._held: list[_Held] = []
        self._registered: set[str] = set()
        self._scans: dict[tuple[str, int | None, Part], DataFrame] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._registered:
            self._spark.catalog.dropTempView(name)
        for rows in (*(copies.rows for copies in self._copies.values()), *(held.rows for held in self._held)):
            rows.unpersist()

    def add(self, inputs: Mapping[str, PinnedInput]) -> None:
        """Make more inputs known: gold tables, once those they are made of are built."""
        self._inputs.update(inputs)

    def prepare(self, plans: Sequence[tuple[GoldPlan, str]]) -> None:
        """Look up the copies once for all plans that read an input, and hold what several read, instead of once each.

        Args:
            plans: each with its SQL.
        """
        for name in self._inputs:
            readers: dict[tuple[str, bool], list[tuple[Part, str]]] = {}
            for plan, sql in plans:
                if name in plan.table.reads:
                    part = plan.input_of(name)
                    readers.setdefault((part.column, part.by_hours), []).append((part, sql))
            for alike in readers.values():
                part = reduce(Part.union, (part for part, _ in alike))
                self._copies_of(name, part)
                if len(alike) > 1:
                    self._hold(name, part, [sql for _, sql in alike])

    def register(self, reads: Sequence[str], part: Part, *, sql: str = "*") -> None:
        """Make the views for one gold table, holding the rows of `part`.

        Args:
            sql: what is read of them; by default all columns.
        """
        # What gives scores comes after the rows it gives them to.
        for name in sorted(reads, key=lambda read: self._inputs[read].scores is not None):
            rows, scores = self._without_copies(name, part, sql), self._inputs[name].scores
            if scores is not None:
                rows = scored_rows(rows, self._spark.table(scores.features), scores)
            rows.createOrReplaceTempView(view_name(name))
            self._registered.add(view_name(name))

    def copies_dropped(self, reads: Sequence[str], part: Part) -> int:
        """How many rows the views over `part` leave out as copies."""
        total = 0
        for name in reads:
            copies = self._copies_of(name, part)
            per_value = copies.per_value if copies else {}
            total += sum(count for value, count in per_value.items() if part.has(value))
        return total

    def rows_of(self, reads: Sequence[str]) -> int | None:
        """Rows of all files of these inputs, by their logs; None where a file says nothing of its rows."""
        counted = [rows_in(self._inputs[name].opened) for name in reads]
        return None if None in counted else sum(rows or 0 for rows in counted)

    def _without_copies(self, name: str, part: Part, sql: str) -> DataFrame:
        """The rows of `part` that SQL reads."""
        for held in self._held:
            if held.serves(name, part, self._columns_read(name, [sql])):
                placed, column = self._placed(self._inputs[name], part)
                return rows_within(held.rows, placed, column, self._inputs[name].time_column)
        rows, copies = self._rows(name, part), self._copies_of(name, part)
        if copies is not None and copies.per_value:
            rows = rows.join(copies.rows, on=list(ARRIVAL), how="left_anti")
        return rows

    def _hold(self, name: str, part: Part, queries: Sequence[str]) -> None:
        """Keep what these queries read of a part, where that is little: each small file is opened once, not by each."""
        pinned = self._inputs[name]
        if any(other.scores is not None for other in self._inputs.values()):
            return  # scores are made of columns that no query names
        placed, column = self._placed(pinned, part)
        opened = pinned.opened
        if opened is None:
            return
        scan = Scan(pinned.key, opened.version(), placed, column, pinned.time_column)
        counts = [file.rows for file in added_files(opened, scan)]
        if not counts or None in counts or sum(rows or 0 for rows in counts) > MOST_HELD_ROWS:
            return
        rows = self._without_copies(name, part, "*").select(*self._columns_read(name, queries))
        self._held.append(_Held(name, part, rows.persist()))

    def _columns_read(self, name: str, queries: Sequence[str]) -> list[str]:
        """The columns of an input that may be read by these queries, and those by which it is cut into parts."""
        pinned, columns = self._inputs[name], self._column_names(name)
        kept = {pinned.date_column, pinned.time_column}
        return [column for column in columns if column in kept or any(may_read(sql, column) for sql in queries)]

    def _column_names(self, name: str) -> list[str]:
        opened = self._inputs[name].opened
        return [] if opened is None else [field.name for field in opened.schema().fields]

    def _rows(self, name: str, part: Part) -> DataFrame:
        """The rows of `part` that are there for readers: none that a mutation has deleted."""
        pinned = self._inputs[name]
        if pinned.version is None:
            ddl = ", ".join(f"`{column}` {kind}" for column, kind in pinned.columns.items())
            return self._spark.createDataFrame([], ddl)
        part, column = self._placed(pinned, part)
        rows = self._scanned(pinned, part, column)
        if DELETED_COLUMN in pinned.columns and DELETED_COLUMN in rows.columns:
            rows = rows.filter(~F.coalesce(DELETED_COLUMN, F.lit(False)))
        return rows_within(rows, part, column, pinned.time_column)

    def _placed(self, pinned: PinnedInput, part: Part) -> tuple[Part, str]:
        """The part in terms of an input, with the column of it that the part's values are of."""
        if part.column == DATE_COLUMN and not pinned.date_column:
            return Part(DATE_COLUMN, None), DATE_COLUMN
        if part.by_hours and not pinned.time_column:
            part = part.whole_dates()
        return part, pinned.date_column if part.column == DATE_COLUMN else part.column

    def _scanned(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        """At least the rows of the part, of the version that is pinned; its files are looked for once.

        A gold table is pinned anew for each one that reads it, and another builder may have written it meanwhile.
        """
        place = (pinned.name, pinned.version, part)
        if place not in self._scans:
            self._scans[place] = self._scan(pinned, part, column)
        return self._scans[place]

    def _scan(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        if pinned.opened is not None:
            scan = Scan(pinned.key, pinned.opened.version(), part, column, pinned.time_column)
            if (rows := scanned_rows(self._spark, self._lake, pinned.opened, scan)) is not None:
                return rows
        uri = self._lake.storage.spark_uri(pinned.key)
        return self._spark.read.format("delta").option("versionAsOf", pinned.version).load(uri)

    def _copies_of(self, name: str, part: Part) -> Copies | None:
        if self._dedupe is None or self._inputs[name].version is None or not self._inputs[name].of_events:
            return None
        for (input_name, covered), copies in self._copies.items():
            if input_name == name and covered.covers(part):
                return copies
        copies = self._find_copies_here(name, part, self._dedupe) or self._find_copies(name, part, self._dedupe)
        self._copies[name, part] = copies
        return copies

    def _find_copies_here(self, name: str, part: Part, dedupe: DedupeSpec) -> Copies | None:
        """The copies as the driver finds them; None where that is Spark's to do."""
        pinned = self._inputs[name]
        opened = None if DELETED_COLUMN in pinned.columns else pinned.opened
        if opened is None:
            return None
        placed, column = self._placed(pinned, around(dedupe, part))
        scan = Scan(pinned.key, opened.version(), placed, column, pinned.time_column)
        copied = copies_by_driver(self._lake, opened, scan, part, by=dedupe.by, across=reach(dedupe, part))
        if copied is None:
            return None
        rows, per_value = copied
        return Copies(F.broadcast(self._spark.createDataFrame(rows)), per_value)

    def _find_copies(self, name: str, part: Part, dedupe: DedupeSpec) -> Copies:
        copied = copies_by_spark(self._rows(name, around(dedupe, part)), part, dedupe)
        rows = rows_within(copied, part, part.column, TIME_COLUMN).select(*ARRIVAL, "_value").persist()
        counts = rows.groupBy("_value").count().collect()
        return Copies(rows, {hour_numbered(row[0]) if part.by_hours else row[0]: row[1] for row in counts})


def may_read(sql: str, column: str) -> bool:
    """Whether a query may read a column of what it reads: it names it, or something reads all there are."""
    return column.lower() in sql.lower() or _READS_ALL.search(_COUNT_ALL.sub("", sql)) is not None


def rows_within(rows: DataFrame, part: Part, column: str, time_column: str = "") -> DataFrame:
    """The rows that are in `part` by a column. Rows without a value are in none but that of all.

    Args:
        time_column: has the instants of rows, for a part with hours.
    """
    if part.values is None:
        return rows
    if part.hours:
        return rows.filter(part.condition(column, time_column))
    inside = F.col(column).isin(sorted(part.values))
    if part.since is not None:
        onwards = F.col(column) >= F.lit(part.since)
        inside = inside | onwards if part.values else onwards
    return rows.filter(inside)
