"""The inputs of gold tables as views for their SQL: rows of some dates, without the copies producers sent twice.

A row is a copy when another row of the same key, at most `within_days` dates away, arrived before it (the lesser
`_seq`, then `_position`). That is decided by the neighbouring dates alone, so a rebuild of some dates agrees with a
rebuild of all. For tables with a grain the neighbouring hours decide, up to `within_hours` away. Where a table is
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

from deltaworks.gold.duplicates import (
    ARRIVAL,
    Duplicates,
    find_duplicates_with_spark,
    hour_from_number,
    window_part,
    window_size,
)
from deltaworks.gold.event_keys import find_duplicates_in_driver
from deltaworks.gold.file_scan import FileScan, added_files, read_plain_files, row_count
from deltaworks.gold.inputs import PinnedInput
from deltaworks.gold.model_tables import score_rows
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import DedupeSpec, view_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.lake import Lake

#: Rows of an input that several tables read are held in memory up to so many.
MAX_CACHED_ROWS: Final = 1_000_000
_COUNT_STAR = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
#: What reads columns of a table that it does not name.
_READS_ALL_COLUMNS = re.compile(r"\*|\|>|\b(?:natural|pivot|unpivot|table)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _CachedRows:
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
        self._duplicates: dict[tuple[str, Part], Duplicates] = {}
        self._cached_rows: list[_CachedRows] = []
        self._registered: set[str] = set()
        self._scans: dict[tuple[str, int | None, Part], DataFrame] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._registered:
            self._spark.catalog.dropTempView(name)
        for rows in (
            *(copies.rows for copies in self._duplicates.values()),
            *(held.rows for held in self._cached_rows),
        ):
            rows.unpersist()

    def add_inputs(self, inputs: Mapping[str, PinnedInput]) -> None:
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
                    readers.setdefault((part.column, part.is_hourly), []).append((part, sql))
            for same_column in readers.values():
                part = reduce(Part.union, (part for part, _ in same_column))
                self._duplicates_in(name, part)
                if len(same_column) > 1:
                    self._cache_shared_rows(name, part, [sql for _, sql in same_column])

    def register(self, reads: Sequence[str], part: Part, *, sql: str = "*") -> None:
        """Make the views for one gold table, holding the rows of `part`.

        Args:
            sql: what is read of them; by default all columns.
        """
        # What gives scores comes after the rows it gives them to.
        for name in sorted(reads, key=lambda read: self._inputs[read].scored_input is not None):
            rows, scores = self._deduplicated_rows(name, part, sql), self._inputs[name].scored_input
            if scores is not None:
                rows = score_rows(rows, self._spark.table(scores.table), scores)
            rows.createOrReplaceTempView(view_name(name))
            self._registered.add(view_name(name))

    def count_duplicates(self, reads: Sequence[str], part: Part) -> int:
        """How many rows the views over `part` leave out as copies."""
        total = 0
        for name in reads:
            copies = self._duplicates_in(name, part)
            count_by_value = copies.count_by_value if copies else {}
            total += sum(count for value, count in count_by_value.items() if part.contains(value))
        return total

    def count_rows(self, reads: Sequence[str]) -> int | None:
        """Rows of all files of these inputs, by their logs; None where a file says nothing of its rows."""
        counted = [row_count(self._inputs[name].delta_table) for name in reads]
        return None if None in counted else sum(rows or 0 for rows in counted)

    def _deduplicated_rows(self, name: str, part: Part, sql: str) -> DataFrame:
        """The rows of `part` that SQL reads."""
        for held in self._cached_rows:
            if held.serves(name, part, self._referenced_columns(name, [sql])):
                placed, column = self._translate_part(self._inputs[name], part)
                return filter_part(held.rows, placed, column, self._inputs[name].time_column)
        rows, copies = self._visible_rows(name, part), self._duplicates_in(name, part)
        if copies is not None and copies.count_by_value:
            rows = rows.join(copies.rows, on=list(ARRIVAL), how="left_anti")
        return rows

    def _cache_shared_rows(self, name: str, part: Part, queries: Sequence[str]) -> None:
        """Keep what these queries read of a part, where that is little: each small file is opened once, not by each."""
        pinned = self._inputs[name]
        if any(other.scored_input is not None for other in self._inputs.values()):
            return  # scores are made of columns that no query names
        placed, column = self._translate_part(pinned, part)
        opened = pinned.delta_table
        if opened is None:
            return
        scan = FileScan(pinned.key, opened.version(), placed, column, pinned.time_column)
        counts = [file.rows for file in added_files(opened, scan)]
        if not counts or None in counts or sum(rows or 0 for rows in counts) > MAX_CACHED_ROWS:
            return
        rows = self._deduplicated_rows(name, part, "*").select(*self._referenced_columns(name, queries))
        self._cached_rows.append(_CachedRows(name, part, rows.persist()))

    def _referenced_columns(self, name: str, queries: Sequence[str]) -> list[str]:
        """The columns of an input that may be read by these queries, and those by which it is cut into parts."""
        pinned, columns = self._inputs[name], self._column_names(name)
        always_included = {pinned.date_column, pinned.time_column}
        return [
            column
            for column in columns
            if column in always_included or any(may_reference(sql, column) for sql in queries)
        ]

    def _column_names(self, name: str) -> list[str]:
        opened = self._inputs[name].delta_table
        return [] if opened is None else [field.name for field in opened.schema().fields]

    def _visible_rows(self, name: str, part: Part) -> DataFrame:
        """The rows of `part` that are there for readers: none that a mutation has deleted."""
        pinned = self._inputs[name]
        if pinned.version is None:
            ddl = ", ".join(f"`{column}` {kind}" for column, kind in pinned.columns.items())
            return self._spark.createDataFrame([], ddl)
        part, column = self._translate_part(pinned, part)
        rows = self._read_version(pinned, part, column)
        if DELETED_COLUMN in pinned.columns and DELETED_COLUMN in rows.columns:
            rows = rows.filter(~F.coalesce(DELETED_COLUMN, F.lit(False)))
        return filter_part(rows, part, column, pinned.time_column)

    def _translate_part(self, pinned: PinnedInput, part: Part) -> tuple[Part, str]:
        """The part in terms of an input, with the column of it that the part's values are of."""
        if part.column == DATE_COLUMN and not pinned.date_column:
            return Part(DATE_COLUMN, None), DATE_COLUMN
        if part.is_hourly and not pinned.time_column:
            part = part.without_hours()
        return part, pinned.date_column if part.column == DATE_COLUMN else part.column

    def _read_version(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        """At least the rows of the part, of the version that is pinned; its files are looked for once.

        A gold table is pinned anew for each one that reads it, and another builder may have written it meanwhile.
        """
        scan_key = (pinned.name, pinned.version, part)
        if scan_key not in self._scans:
            self._scans[scan_key] = self._scan(pinned, part, column)
        return self._scans[scan_key]

    def _scan(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        if pinned.delta_table is not None:
            scan = FileScan(pinned.key, pinned.delta_table.version(), part, column, pinned.time_column)
            if (rows := read_plain_files(self._spark, self._lake, pinned.delta_table, scan)) is not None:
                return rows
        uri = self._lake.storage.spark_uri(pinned.key)
        return self._spark.read.format("delta").option("versionAsOf", pinned.version).load(uri)

    def _duplicates_in(self, name: str, part: Part) -> Duplicates | None:
        if self._dedupe is None or self._inputs[name].version is None or not self._inputs[name].has_events:
            return None
        for (input_name, covered), copies in self._duplicates.items():
            if input_name == name and covered.covers(part):
                return copies
        copies = self._find_in_driver(name, part, self._dedupe) or self._find_with_spark(name, part, self._dedupe)
        self._duplicates[name, part] = copies
        return copies

    def _find_in_driver(self, name: str, part: Part, dedupe: DedupeSpec) -> Duplicates | None:
        """The copies as the driver finds them; None where that is Spark's to do."""
        pinned = self._inputs[name]
        opened = None if DELETED_COLUMN in pinned.columns else pinned.delta_table
        if opened is None:
            return None
        placed, column = self._translate_part(pinned, window_part(dedupe, part))
        scan = FileScan(pinned.key, opened.version(), placed, column, pinned.time_column)
        found_duplicates = find_duplicates_in_driver(
            self._lake, opened, scan, part, key_column=dedupe.by, window=window_size(dedupe, part)
        )
        if found_duplicates is None:
            return None
        rows, count_by_value = found_duplicates
        return Duplicates(F.broadcast(self._spark.createDataFrame(rows)), count_by_value)

    def _find_with_spark(self, name: str, part: Part, dedupe: DedupeSpec) -> Duplicates:
        duplicates = find_duplicates_with_spark(self._visible_rows(name, window_part(dedupe, part)), part, dedupe)
        rows = filter_part(duplicates, part, part.column, TIME_COLUMN).select(*ARRIVAL, "_value").persist()
        counts = rows.groupBy("_value").count().collect()
        return Duplicates(rows, {hour_from_number(row[0]) if part.is_hourly else row[0]: row[1] for row in counts})


def may_reference(sql: str, column: str) -> bool:
    """Whether a query may read a column of what it reads: it names it, or something reads all there are."""
    return column.lower() in sql.lower() or _READS_ALL_COLUMNS.search(_COUNT_STAR.sub("", sql)) is not None


def filter_part(rows: DataFrame, part: Part, column: str, time_column: str = "") -> DataFrame:
    """The rows that are in `part` by a column. Rows without a value are in none but that of all.

    Args:
        time_column: has the instants of rows, for a part with hours.
    """
    if part.values is None:
        return rows
    if part.hours:
        return rows.filter(part.condition(column, time_column))
    is_in_part = F.col(column).isin(sorted(part.values))
    if part.since is not None:
        is_since = F.col(column) >= F.lit(part.since)
        is_in_part = is_in_part | is_since if part.values else is_since
    return rows.filter(is_in_part)
