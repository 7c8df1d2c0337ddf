"""Registers the inputs of gold tables as temporary views without duplicate events.

A row is a duplicate if another row with the same key arrived earlier within the dedupe window (`within_days`, or
`within_hours` for tables with a grain). Only neighbouring dates or hours decide, so partial and full rebuilds give the
same rows. Tables that are rebuilt by another column deduplicate within each value of that column. Duplicates are found
once per input, over the key columns only; small inputs of several tables are cached.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import TracebackType
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control.foreign_errors import describe_cause
from deltaworks.gold.event_keys import (
    ARRIVAL,
    Duplicates,
    find_duplicates_in_driver,
    find_duplicates_with_spark,
    hour_from_number,
)
from deltaworks.gold.file_scan import FileScan, added_files, read_plain_files, row_count
from deltaworks.gold.model_tables import score_rows
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part, dedupe_window_part, window_size
from deltaworks.gold.pinned_inputs import PinnedInput
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import DedupeSpec, view_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)

#: Maximum rows of an input that are cached for several tables.
MAX_CACHED_ROWS: Final = 1_000_000
_COUNT_STAR = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
#: Matches SQL that may read columns without naming them.
_READS_ALL_COLUMNS = re.compile(r"\*|\|>|\b(?:natural|pivot|unpivot|table)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _CachedRows:
    """Deduplicated rows of a part of an input, with some of its columns, cached while tables are built."""

    name: str
    part: Part
    rows: DataFrame

    def serves(self, name: str, part: Part, columns: Collection[str]) -> bool:
        """Whether the cached rows include all rows of the part, with these columns."""
        return self.name == name and self.part.covers(part) and set(columns) <= set(self.rows.columns)


class InputViews:
    """Temporary views of the inputs, under the names used in gold SQL. One build per session at a time.

    Args:
        is_independent: use Delta's reader and Spark alone, and none of the shortcuts by which builds find files and
            duplicates, so that a mistake of theirs shows.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        inputs: Mapping[str, PinnedInput],
        dedupe: DedupeSpec | None,
        *,
        is_independent: bool = False,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._inputs = dict(inputs)
        self._dedupe = dedupe
        self._is_independent = is_independent
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
            *(duplicates.rows for duplicates in self._duplicates.values()),
            *(cached.rows for cached in self._cached_rows),
        ):
            rows.unpersist()

    def add_inputs(self, inputs: Mapping[str, PinnedInput]) -> None:
        """Adds gold tables that this run has built as inputs."""
        self._inputs.update(inputs)

    def prepare(self, plans: Sequence[tuple[GoldPlan, str]]) -> None:
        """Finds the duplicates of each input once for all plans, and caches rows that several plans read.

        Args:
            plans: each plan with the SQL of its table.
        """
        for name in self._inputs:
            readers: dict[tuple[str, bool], list[tuple[Part, str]]] = {}
            for plan, sql in plans:
                if name in plan.table.reads:
                    part = plan.input_of(name)
                    readers.setdefault((part.column, part.is_hourly), []).append((part, sql))
            for same_column in readers.values():
                part = reduce(Part.union, (part for part, _ in same_column))
                try:
                    self._duplicates_in(name, part)
                    if len(same_column) > 1:
                        self._cache_shared_rows(name, part, [sql for _, sql in same_column])
                except Exception as error:
                    # The tables that read this input fail in their own build, and no others.
                    log.warning("input=%s cannot be prepared: %s", name, describe_cause(error))

    def register(self, reads: Sequence[str], part: Part, *, sql: str = "*") -> None:
        """Registers the views of one gold table with the rows of `part`.

        Args:
            sql: the query over the views; by default all columns are kept.
        """
        # Models need the view of their features first.
        for name in sorted(reads, key=lambda name_read: self._inputs[name_read].scored_input is not None):
            rows, scores = self._deduplicated_rows(name, part, sql), self._inputs[name].scored_input
            if scores is not None:
                rows = score_rows(rows, self._spark.table(scores.table), scores)
            rows.createOrReplaceTempView(view_name(name))
            self._registered.add(view_name(name))

    def count_duplicates(self, reads: Sequence[str], part: Part) -> int:
        """Returns the number of duplicate rows that the views over `part` omit."""
        total = 0
        for name in reads:
            duplicates = self._duplicates_in(name, part)
            count_by_value = duplicates.count_by_value if duplicates else {}
            total += sum(count for value, count in count_by_value.items() if part.contains(value))
        return total

    def count_rows(self, reads: Sequence[str]) -> int | None:
        """Returns the total number of rows of these inputs according to their logs; None if a file has no count."""
        counted = [row_count(self._inputs[name].delta_table) for name in reads]
        return None if None in counted else sum(rows or 0 for rows in counted)

    def _deduplicated_rows(self, name: str, part: Part, sql: str) -> DataFrame:
        """Returns the deduplicated rows of `part`, with the columns the SQL needs."""
        for cached in self._cached_rows:
            if cached.serves(name, part, self._referenced_columns(name, [sql])):
                placed, column = self._translate_part(self._inputs[name], part)
                return filter_part(cached.rows, placed, column, self._inputs[name].time_column)
        rows, duplicates = self._visible_rows(name, part), self._duplicates_in(name, part)
        if duplicates is not None and duplicates.count_by_value:
            rows = rows.join(duplicates.rows, on=list(ARRIVAL), how="left_anti")
        return rows

    def _cache_shared_rows(self, name: str, part: Part, queries: Sequence[str]) -> None:
        """Caches the columns that these queries read of a small part, so each file is read once."""
        pinned = self._inputs[name]
        if any(other.scored_input is not None for other in self._inputs.values()):
            return  # score expressions read columns that the SQL does not name
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
        """Returns the columns the queries may read, and the date and time columns."""
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
        """Returns the rows of `part` without rows deleted by mutations."""
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
        """Translates a part of a gold table to a column of an input. Returns the part and the column."""
        if part.column == DATE_COLUMN and not pinned.date_column:
            return Part(DATE_COLUMN, None), DATE_COLUMN
        if part.is_hourly and not pinned.time_column:
            part = part.without_hours()
        return part, pinned.date_column if part.column == DATE_COLUMN else part.column

    def _read_version(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        """Reads files that contain the part at the pinned version. The DataFrame is reused.

        The version is part of the key: a gold table is pinned again for each reader and may have a newer version.
        """
        scan_key = (pinned.name, pinned.version, part)
        if scan_key not in self._scans:
            self._scans[scan_key] = self._scan(pinned, part, column)
        return self._scans[scan_key]

    def _scan(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        if pinned.delta_table is not None and not self._is_independent:
            scan = FileScan(pinned.key, pinned.delta_table.version(), part, column, pinned.time_column)
            if (rows := read_plain_files(self._spark, self._lake, pinned.delta_table, scan)) is not None:
                return rows
        uri = self._lake.storage.spark_uri(pinned.key)
        return self._spark.read.format("delta").option("versionAsOf", pinned.version).load(uri)

    def _duplicates_in(self, name: str, part: Part) -> Duplicates | None:
        if self._dedupe is None or self._inputs[name].version is None or not self._inputs[name].has_events:
            return None
        for (input_name, covered), duplicates in self._duplicates.items():
            if input_name == name and covered.covers(part):
                return duplicates
        in_driver = None if self._is_independent else self._find_in_driver(name, part, self._dedupe)
        duplicates = in_driver or self._find_with_spark(name, part, self._dedupe)
        self._duplicates[name, part] = duplicates
        return duplicates

    def _find_in_driver(self, name: str, part: Part, dedupe: DedupeSpec) -> Duplicates | None:
        """Finds duplicates in the driver. Returns None if Spark must find them."""
        pinned = self._inputs[name]
        opened = None if DELETED_COLUMN in pinned.columns else pinned.delta_table
        if opened is None:
            return None
        placed, column = self._translate_part(pinned, dedupe_window_part(dedupe, part))
        scan = FileScan(pinned.key, opened.version(), placed, column, pinned.time_column)
        found_duplicates = find_duplicates_in_driver(
            self._lake, opened, scan, part, key_column=dedupe.by, window=window_size(dedupe, part)
        )
        if found_duplicates is None:
            return None
        rows, count_by_value = found_duplicates
        return Duplicates(F.broadcast(self._spark.createDataFrame(rows)), count_by_value)

    def _find_with_spark(self, name: str, part: Part, dedupe: DedupeSpec) -> Duplicates:
        duplicates = find_duplicates_with_spark(
            self._visible_rows(name, dedupe_window_part(dedupe, part)), part, dedupe
        )
        rows = filter_part(duplicates, part, part.column, TIME_COLUMN).select(*ARRIVAL, "_value").persist()
        counts = rows.groupBy("_value").count().collect()
        return Duplicates(rows, {hour_from_number(row[0]) if part.is_hourly else row[0]: row[1] for row in counts})


def may_reference(sql: str, column: str) -> bool:
    """Whether a query may read a column, by name or by `*`."""
    return column.lower() in sql.lower() or _READS_ALL_COLUMNS.search(_COUNT_STAR.sub("", sql)) is not None


def filter_part(rows: DataFrame, part: Part, column: str, time_column: str = "") -> DataFrame:
    """Filters rows to a part. Rows with a null value match only an unrestricted part.

    Args:
        time_column: the event time column, for parts with hours.
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
