"""Merges the changed periods of a batch into one mutable table with Spark.

Source values do not prune the target of a MERGE, but literals on target columns do. So the organisations, time range
and id range of the batch are passed to Delta as literals. Rewritten rows are written by partition: a small partition
becomes one file, a huge one is split.

With deletion vectors, a merge marks changed rows and writes their new versions to a small file, instead of rewriting
every affected file. Reads are slower until OPTIMIZE removes the marked rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.provenance import MUTATE, user_metadata
from deltaworks.mutations.bounds import mutable_spec
from deltaworks.mutations.small_merge import (
    MAX_LISTED_ORGANISATIONS,
    PERIOD_COLUMNS,
    SET_PREFIX,
    SOURCE,
    TARGET,
    AffectedRange,
)
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import USER_METADATA, override_settings, retry_conflicts

#: Bytes rewritten by one task, and the maximum file size.
BYTES_PER_TASK = 128 << 20
MAX_TASKS = 2_000
TRANSACTION_APP = "spark.databricks.delta.write.txnAppId"
TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
DELETION_VECTORS = "delta.enableDeletionVectors"


def affected_range(periods: DataFrame) -> AffectedRange:
    """Computes the range of these periods. Runs two small jobs; collects at most MAX_LISTED_ORGANISATIONS + 1 rows."""
    org, start, end = F.col(ORG_COLUMN), F.col("valid_from"), F.col("valid_to")
    bounds = periods.agg(
        F.count("*").alias("periods"),
        F.min(org).alias("first_organisation"),
        F.max(org).alias("last_organisation"),
        F.min("id").alias("first_id"),
        F.max("id").alias("last_id"),
        F.when(~F.max(start.isNull()), F.min(start)).alias("since"),
        F.when(~F.max(end.isNull()), F.max(end)).alias("until"),
    ).collect()[0]
    names = [row[0] for row in periods.select(org).distinct().limit(MAX_LISTED_ORGANISATIONS + 1).collect()]
    organisations = tuple(sorted(names)) if len(names) <= MAX_LISTED_ORGANISATIONS else None
    return AffectedRange(organisations=organisations, **bounds.asDict())


def affected_condition(affected: AffectedRange, table: TableSpec, prefix: str = TARGET) -> Column:
    """Returns the condition that selects rows a batch can change. It compares columns with literals, so files can be
    skipped.
    """

    def column(name: str) -> Column:
        return F.col(f"{prefix}.{name}")

    if affected.organisations is not None:
        conditions = [column(ORG_COLUMN).isin(*affected.organisations)]
    else:
        conditions = [column(ORG_COLUMN).between(F.lit(affected.first_organisation), F.lit(affected.last_organisation))]
    conditions.append(column(mutable_spec(table).origin).between(F.lit(affected.first_id), F.lit(affected.last_id)))
    if affected.since is not None:
        conditions += [
            column("event_time") >= F.lit(affected.since),
            column("event_date") >= F.lit(affected.since.date()),
        ]
    if affected.until is not None:
        conditions += [
            column("event_time") < F.lit(affected.until),
            column("event_date") <= F.lit(affected.until.date()),
        ]
    return _all_of(conditions)


class TableMerge:
    """Merges periods into one mutable table.

    Args:
        periods: columns as in `interval_diff.merge_periods`. They do not overlap, so a row matches at most one.
    """

    def __init__(self, table: TableSpec, periods: DataFrame, affected: AffectedRange) -> None:
        self._table = table
        self._mutable = mutable_spec(table)
        self._periods = periods
        self._affected = affected
        self._types = table.column_types()

    def execute(self, session: SparkSession, uri: str, *, batch: int) -> None:
        """Runs the MERGE as one commit, with the settings of the session."""
        (
            DeltaTable.forPath(session, uri)
            .alias(TARGET)
            .merge(self._periods.alias(SOURCE), self.condition())
            .whenMatchedUpdate(set=self._assignments(batch))
            .execute()
        )

    def condition(self) -> Column:
        """Returns the join condition of rows and periods, for rows whose values would change."""
        return _all_of([affected_condition(self._affected, self._table), self._is_in_period(), self._differs()])

    def matching_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the rows of the table that `execute` would change."""
        return rows.alias(TARGET).join(self._periods.alias(SOURCE), self.condition())

    def _is_in_period(self) -> Column:
        start, end = F.col(f"{SOURCE}.valid_from"), F.col(f"{SOURCE}.valid_to")
        time = F.col(f"{TARGET}.event_time")
        return _all_of(
            [
                F.col(f"{TARGET}.{ORG_COLUMN}") == F.col(f"{SOURCE}.{ORG_COLUMN}"),
                F.col(f"{TARGET}.{self._mutable.origin}") == F.col(f"{SOURCE}.id"),
                start.isNull() | (time >= start),
                end.isNull() | (time < end),
            ]
        )

    def _differs(self) -> Column:
        return ~_all_of([self._current_value(name).eqNullSafe(value) for name, value in self._new_values().items()])

    def _current_value(self, name: str) -> Column:
        current = F.col(f"{TARGET}.{name}")
        return F.coalesce(current, F.lit(False)) if name == DELETED_COLUMN else current

    def _new_values(self) -> dict[str, Column]:
        """Returns the new values: the id, each field (the set value, otherwise the original one), and the deletion
        flag.
        """
        values = {self._mutable.id: F.col(f"{SOURCE}.final_id")}
        for name, origin in self._mutable.fields.items():
            text = F.col(f"{SOURCE}.fields")[F.lit(name)]
            values[name] = F.coalesce(parse_text(text, self._types[name]), F.col(f"{TARGET}.{origin}"))
        return {**values, DELETED_COLUMN: F.col(f"{SOURCE}.deleted")}

    def _assignments(self, batch: int) -> dict[str, str | Column]:
        values: dict[str, str | Column] = {f"`{name}`": value for name, value in self._new_values().items()}
        return {**values, f"`{MUTATION_COLUMN}`": F.lit(batch).cast("long")}


def parse_text(text: Column, kind: str) -> Column:
    """Parses a text column as a type; null if it is invalid. Arrays, maps and structs are JSON."""
    if kind == "string":
        return text
    return text.try_cast(kind) if isinstance(parse_type(kind), Primitive | Decimal) else F.from_json(text, kind)


def merge_source(table: TableSpec, periods: DataFrame) -> pa.Table:
    """Collects periods as the source of a `SmallMerge`. They must be few enough for the driver."""
    types = table.column_types()
    set_values = [
        parse_text(F.col("fields")[F.lit(name)], types[name]).alias(f"{SET_PREFIX}{name}")
        for name in mutable_spec(table).fields
    ]
    return periods.select(*PERIOD_COLUMNS, *set_values).toArrow()


def count_invalid_values(periods: DataFrame, table: TableSpec) -> int:
    """Counts update values that do not fit their column's type. Rows keep their original value instead."""
    types = table.column_types()
    texts = F.col("fields")
    invalid = [
        F.when(texts[F.lit(name)].isNotNull() & parse_text(texts[F.lit(name)], types[name]).isNull(), 1).otherwise(0)
        for name in mutable_spec(table).fields
        if types[name] != "string"
    ]
    if not invalid:
        return 0
    total = periods.agg(F.sum(functools.reduce(operator.add, invalid))).collect()[0][0]
    return int(total or 0)


def merge_settings(*, target_bytes: int, cores: int) -> dict[str, str]:
    """Returns session settings of a MERGE: parallelism according to the bytes that it may rewrite, and files by
    partition.
    """
    tasks = max(cores, min(MAX_TASKS, -(-target_bytes // BYTES_PER_TASK)))
    return {
        "spark.sql.shuffle.partitions": str(tasks),
        # Shuffles rows by partition before writing; splits partitions beyond the file size.
        "spark.databricks.delta.optimizeWrite.enabled": "true",
        "spark.databricks.delta.optimizeWrite.binSize": f"{BYTES_PER_TASK >> 20}MB",
    }


def transaction_settings(app_id: str, version: int) -> Mapping[str, str]:
    """Returns session settings that give the next commit an application transaction."""
    return {TRANSACTION_APP: app_id, TRANSACTION_VERSION: str(version)}


def set_deletion_vectors(
    session: SparkSession, lake: Lake, pipeline: str, table: TableSpec, *, check: Callable[[], None]
) -> bool:
    """Enables or disables deletion vectors of a table as declared. Returns whether the table changed.

    Idempotent; makes a separate commit within the table's write turn. After disabling, rows stay marked until OPTIMIZE
    or a merge rewrites their files.

    Args:
        check: called before the commit; its errors are raised.

    Raises:
        ConcurrencyError: DELTA_CONFLICT after repeated conflicts with other writers.
    """
    key = paths.table(pipeline, table.name)
    enabled = None if table.mutable is None else table.mutable.deletion_vectors
    if enabled is None:
        return False
    metadata = user_metadata(pipeline=pipeline, batch="none", operation=MUTATE)
    for attempt in retry_conflicts(table.name):
        with attempt:
            opened = lake.open(key)
            if opened is None or (opened.metadata().configuration.get(DELETION_VECTORS) == "true") == enabled:
                return False
            check()
            with override_settings(session, {USER_METADATA: metadata}):
                uri, value = lake.storage.spark_uri(key), str(enabled).lower()
                session.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('{DELETION_VECTORS}' = '{value}')").collect()
    return True


def _all_of(conditions: Sequence[Column]) -> Column:
    return functools.reduce(operator.and_, conditions)
