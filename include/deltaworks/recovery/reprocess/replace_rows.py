"""Replaces the rows of given `seq`s in one Delta commit of one table, by Spark.

Spark deletes by condition and inserts in one transaction, so concurrently appended rows are never lost. They do not
match the condition, and files that contain both are rewritten from the transaction's own snapshot. Reading first and
overwriting afterwards would lose rows that land in between.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaworks.control.background import attempts
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
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
