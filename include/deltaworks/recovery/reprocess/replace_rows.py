"""Replaces the rows of given `seq`s in one Delta commit of one table, in this process or by Spark.

In this process, files with such rows are rewritten without them, together with the new rows of their partitions
(`tables.rewrite`). Tables with unsupported features, and tables with more data than a small job should hold in memory,
require Spark. Spark deletes by condition and inserts in one transaction, so concurrently appended rows are never lost:
they do not match the condition, and files that contain both are rewritten from the transaction's own snapshot. Reading
first and overwriting afterwards would lose rows that land in between.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control.background import attempts
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.tables.changes import Partition
from deltaworks.tables.commit import Step
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.files import read_parquet, split_by_partition
from deltaworks.tables.files_commit import FilesCommit, reasons_against_files_commit
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, parse_schema_string, stats_of
from deltaworks.tables.rewrite import (
    DataFiles,
    Rewrite,
    SparkRequiredError,
    commit_rewrite,
    overwrite_parameters,
)
from deltaworks.tables.variant import read_with_variants, variant_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)
MAX_ATTEMPTS = 10
#: Date columns that bound the rewrite, so that writers of other dates do not conflict.
DATE_COLUMNS = ("event_date", "quarantine_date")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceResult:
    """The result of a replacement. `outcome` is `committed`, `already_committed`, or `unchanged` if there was nothing
    to do.
    """

    outcome: str
    rows_out: int
    rows_in: int
    dates: tuple[str, ...]
    version: int


class SparkRowReplacer:
    """Replaces rows of one table with Spark. Idempotent by its step; safe with writers of other rows."""

    def __init__(self, spark: SparkSession, lake: Lake, key: str) -> None:
        self._spark = spark
        self._lake = lake
        self._key = key
        self._uri = lake.storage.spark_uri(key)

    def replace(
        self,
        ranges: SeqRanges,
        staged: Sequence[str],
        *,
        step: Step,
        user_metadata: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> ReplaceResult:
        """Removes the rows of `ranges` and adds the staged rows, exactly once.

        Args:
            staged: URIs of Parquet files; the `_seq` of every row is in `ranges`.
            before_commit: called before each attempt; an exception ends the replacement.

        Raises:
            ConcurrencyError: DELTA_CONFLICT, every attempt met another writer of the same dates.
        """
        version = committed_version(self._lake, self._key, step)
        opened = self._lake.open(self._key)
        variants = variant_columns(opened.schema()) if opened is not None else frozenset()
        rows = read_with_variants(self._spark, staged, variants) if staged else None
        rows_in, new_dates = self._count_by_date(rows) if rows is not None else (0, set())
        if version is not None:
            return self._build_result("already_committed", 0, rows_in, new_dates, version)
        for attempt in attempts(MAX_ATTEMPTS, first_wait_seconds=0.4, max_wait_seconds=5.0):
            present = self._spark.read.format("delta").load(self._uri)
            rows_out, old_dates = self._count_by_date(present.where(ranges.sql()))
            if not rows_out and not rows_in:
                return self._build_result("unchanged", 0, 0, set(), self._table_version())
            before_commit()
            new = present.limit(0) if rows is None else rows
            try:
                self._write(
                    new,
                    _replace_condition(ranges, self._date_column(present), old_dates | new_dates),
                    step,
                    user_metadata,
                )
            except Exception as error:
                problem = as_deltaworks_error(error)
                if not isinstance(problem, ConcurrencyError):
                    raise
                if attempt == MAX_ATTEMPTS:
                    raise problem from error
                log.warning("table=%s attempt=%d met another writer: %s", self._key, attempt, problem.message)
                continue
            return self._build_result("committed", rows_out, rows_in, old_dates | new_dates, self._table_version())
        raise AssertionError("the last attempt returned or raised")

    def _write(self, rows: DataFrame, condition: str, step: Step, user_metadata: str) -> None:
        column = self._date_column(rows)
        # The hint merges a small date into one file and still splits a large one.
        writer = (rows.hint("rebalance", column) if column else rows).write.format("delta").mode("overwrite")
        (
            writer.option("replaceWhere", condition)
            .option("txnAppId", step.app_id)
            .option("txnVersion", step.version)
            .option("userMetadata", user_metadata)
            .save(self._uri)
        )

    @staticmethod
    def _date_column(rows: DataFrame) -> str | None:
        return next((name for name in DATE_COLUMNS if name in rows.columns), None)

    def _count_by_date(self, rows: DataFrame) -> tuple[int, set[dt.date | None]]:
        column = self._date_column(rows)
        if column is None:
            return rows.count(), set()
        counts = {row[column]: row["count"] for row in rows.groupBy(column).count().collect()}
        return sum(counts.values()), set(counts)

    def _table_version(self) -> int:
        table = self._lake.open(self._key)
        if table is None:
            raise table_missing_error(self._key)
        return int(table.version())

    @staticmethod
    def _build_result(
        outcome: str, rows_out: int, rows_in: int, dates: set[dt.date | None], version: int
    ) -> ReplaceResult:
        texts = tuple(sorted(date.isoformat() for date in dates if date is not None))
        return ReplaceResult(outcome=outcome, rows_out=rows_out, rows_in=rows_in, dates=texts, version=version)


def committed_version(lake: Lake, key: str, step: Step) -> int | None:
    """Returns the table's version if the step is committed, otherwise None."""
    table = lake.open(key)
    if table is None:
        return None
    committed = table.transaction_version(step.app_id)
    return table.version() if committed is not None and committed >= step.version else None


def table_missing_error(key: str) -> ContractError:
    """Builds the error for a table that was dropped during the replacement."""
    return ContractError(
        "TABLE_LOG_MISSING",
        f"There is no Delta log at {key}, whose rows were to be replaced.",
        hint="Restore its folder from the storage's versions, or `deltaworks recover table`; then run this again.",
    )


def _replace_condition(ranges: SeqRanges, column: str | None, dates: set[dt.date | None]) -> str:
    """Returns the SQL condition on the removed rows. It lists dates so that Delta prunes partitions, unless one is
    null.
    """
    if column is None or None in dates:
        return ranges.sql()
    listed = ", ".join(f"DATE'{date.isoformat()}'" for date in sorted(date for date in dates if date is not None))
    return f"`{column}` IN ({listed}) AND {ranges.sql()}"


#: Upper bound in bytes for the staged files and for the rewritten files of one table; more requires Spark.
MAX_DIRECT_BYTES = 16 << 20


@dataclass(slots=True)
class _RemovedRows:
    """Files with rows in the ranges, the rows to keep from them by partition, and the removed rows."""

    files: list[Action] = field(default_factory=list)
    remaining: dict[Partition, list[pa.Table]] = field(default_factory=dict)
    rows: int = 0
    dates: set[str] = field(default_factory=set)


class DirectReplacer:
    """Replaces rows of one table in this process. Idempotent by its step; safe with concurrent writers.

    Args:
        max_bytes: bound on the staged files and on the rewritten files.
    """

    def __init__(self, lake: Lake, objects: ObjectStore, key: str, *, max_bytes: int = MAX_DIRECT_BYTES) -> None:
        self._lake = lake
        self._objects = objects
        self._key = key
        self._max_bytes = max_bytes

    def replace(
        self,
        ranges: SeqRanges,
        staged: Sequence[str],
        *,
        step: Step,
        user_metadata: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> ReplaceResult | None:
        """Removes the rows of `ranges` and adds the staged rows, exactly once. Returns None if Spark is required.

        Args:
            staged: keys of Parquet files in the lake; the `_seq` of every row is in `ranges`.
            before_commit: called before each attempt; an exception ends the replacement.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED, every attempt met a concurrent commit.
        """
        opened = self._lake.open(self._key)
        if opened is None:
            return None
        commit = FilesCommit(
            step=step,
            user_metadata=user_metadata,
            operation="WRITE",
            parameters=overwrite_parameters(ranges.sql()),
            action="replace rows",
        )
        try:
            if reasons := reasons_against_rewriting(opened):
                raise SparkRequiredError(", ".join(reasons))
            return self._replace(ranges, self._staged_rows(staged, opened), commit, before_commit, opened)
        except SparkRequiredError as reason:
            log.warning("table=%s is left to Spark: %s", self._key, reason)
            return None

    def _replace(
        self,
        ranges: SeqRanges,
        new: pa.Table,
        commit: FilesCommit,
        before_commit: Callable[[], None],
        opened: DeltaTable,
    ) -> ReplaceResult:
        removed, dates = _RemovedRows(), set[str]()

        def rewrite(current: TableState, files: DataFiles) -> Rewrite | None:
            nonlocal removed, dates
            if reasons := reasons_against_files_commit(current):
                raise SparkRequiredError(", ".join(reasons))
            _check_partitions(current, files.partition_by)
            removed = self._removed_rows(current, files, ranges)
            if not removed.rows and not new.num_rows:
                return None
            rows_by_partition, dates = removed.remaining, set(removed.dates)
            for values, part in split_by_partition(new, files.partition_by) if new.num_rows else ():
                rows_by_partition.setdefault(tuple(values.items()), []).append(part)
                dates |= _row_dates(part, values)
            with _spark_if_unsupported():
                added = [
                    file
                    for partition, tables in rows_by_partition.items()
                    for file in files.write(dict(partition), (batch for rows in tables for batch in rows.to_batches()))
                ]
            return Rewrite(removed=removed.files, added=added)

        done = commit_rewrite(self._lake, self._objects, self._key, rewrite, commit=commit, before_commit=before_commit)
        if done is None:
            return ReplaceResult(outcome="unchanged", rows_out=0, rows_in=0, dates=(), version=int(opened.version()))
        return ReplaceResult(
            outcome="committed" if done.newly_committed else "already_committed",
            rows_out=removed.rows if done.newly_committed else 0,
            rows_in=new.num_rows,
            dates=tuple(sorted(dates)) if done.newly_committed else (),
            version=done.version,
        )

    def _staged_rows(self, staged: Sequence[str], opened: DeltaTable) -> pa.Table:
        """Reads the staged rows; an empty table if nothing is staged."""
        columns = pa.schema(opened.schema().to_arrow())
        filesystem, paths = self._lake.filesystem, [arrow_path(self._lake.storage, key) for key in staged]
        size = sum(info.size or 0 for info in filesystem.get_file_info(paths)) if paths else 0
        if size > self._max_bytes:
            raise SparkRequiredError(f"{size:,} bytes are staged")
        parts = []
        for path in paths:
            with filesystem.open_input_file(path) as source:
                parts.append(read_parquet(source))
        rows = pa.concat_tables(parts, promote_options="default") if parts else columns.empty_table()
        unknown = sorted(set(rows.column_names) - set(columns.names))
        if unknown:
            raise SparkRequiredError(f"the table lacks {', '.join(unknown)}")
        return rows

    def _removed_rows(self, current: TableState, files: DataFiles, ranges: SeqRanges) -> _RemovedRows:
        """Reads the files that may have rows in the ranges."""
        removed, size = _RemovedRows(), 0
        for added in current.files.values():
            if not _may_contain(added, ranges):
                continue
            size += int(added.get("size") or 0)
            if size > self._max_bytes:
                raise SparkRequiredError(f"files of more than {self._max_bytes:,} bytes hold its rows")
            with _spark_if_unsupported(OSError):
                rows = files.read_declared(added)
                mask = _mask_in_ranges(rows, ranges)
            if not mask.any():
                continue
            partition = dict(added.get("partitionValues") or {})
            removed.files.append(added)
            removed.rows += int(mask.sum())
            removed.dates |= _row_dates(rows.filter(pa.array(mask)), partition)
            removed.remaining.setdefault(tuple(partition.items()), []).append(rows.filter(pa.array(~mask)))
        return removed


@contextmanager
def _spark_if_unsupported(*errors: type[Exception]) -> Iterator[None]:
    """Translates errors of files that only Spark may be able to read to `SparkRequiredError`."""
    unsupported = (ContractError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError, *errors)
    try:
        yield
    except unsupported as error:
        raise SparkRequiredError(str(error)[:300]) from error


def _check_partitions(current: TableState, partition_by: Sequence[str]) -> None:
    """Raises `SparkRequiredError` for partition columns whose values Delta writers may format differently."""
    columns = parse_schema_string(current.metadata["schemaString"])
    for name in partition_by:
        kind = columns.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_integer(kind)):
            raise SparkRequiredError(f"the partition column {name} of type {kind}")


def _may_contain(added: Action, ranges: SeqRanges) -> bool:
    """Returns whether a file may have rows in the ranges, by its statistics; True without statistics."""
    stats = stats_of(added)
    least = (stats.get("minValues") or {}).get("_seq")
    most = (stats.get("maxValues") or {}).get("_seq")
    if least is None or most is None:
        return True
    return next(iter(ranges.clip(int(least), int(most))), None) is not None


def _mask_in_ranges(rows: pa.Table, ranges: SeqRanges) -> Any:
    """Returns a boolean mask of the rows within the ranges."""
    column = rows.column("_seq")
    if column.null_count:
        raise SparkRequiredError("a row lacks its _seq")
    seqs = column.to_numpy()
    firsts = np.array([first for first, _ in ranges], dtype=np.int64)
    lasts = np.array([last for _, last in ranges], dtype=np.int64)
    at = np.searchsorted(firsts, seqs, side="right") - 1
    return (at >= 0) & (seqs <= lasts[at])


def _row_dates(rows: pa.Table, partition: Mapping[str, str | None]) -> set[str]:
    """Returns the dates of the rows, from the partition values or the date column."""
    for name in DATE_COLUMNS:
        if name in partition:
            return {value for value in (partition[name],) if value is not None}
        if name in rows.column_names:
            return {date.isoformat() for date in rows.column(name).unique().to_pylist() if date is not None}
    return set()
