"""One MERGE of a batch's stretches into one mutable table: narrow in what it reads, and nothing where nothing differs.

Values of the source never prune a MERGE's target, literals over the target's columns do. So the organisations, the time
and the ids that occur in the batch are told to Delta as literals. What is rewritten is written by partition: a small
partition becomes one file, a huge one is split.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type

#: As many organisations are named one by one; beyond that the least and the greatest are.
NAMED_ORGANISATIONS = 2_000
#: A task of the rewrite takes about this much of the target, which is what becomes of it in a file at most.
BYTES_PER_TASK = 128 << 20
MAX_TASKS = 2_000
TRANSACTION_APP = "spark.databricks.delta.write.txnAppId"
TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
TARGET, SOURCE = "target", "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a batch can touch, in values that occur in it. `organisations` is None where they are too many to name.

    A null time is no bound. `stretches` is 0 where there is nothing to do.
    """

    stretches: int
    organisations: tuple[str, ...] | None = ()
    first_organisation: str | None = None
    last_organisation: str | None = None
    first_id: str | None = None
    last_id: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None


def reach_of(stretches: DataFrame) -> Reach:
    """What these stretches can touch. Two small jobs; at most NAMED_ORGANISATIONS + 1 rows come to the driver."""
    org, start, end = F.col(ORG_COLUMN), F.col("valid_from"), F.col("valid_to")
    found = stretches.agg(
        F.count("*").alias("stretches"),
        F.min(org).alias("first_organisation"),
        F.max(org).alias("last_organisation"),
        F.min("id").alias("first_id"),
        F.max("id").alias("last_id"),
        F.when(~F.max(start.isNull()), F.min(start)).alias("since"),
        F.when(~F.max(end.isNull()), F.max(end)).alias("until"),
    ).first()
    assert found is not None
    named = [row[0] for row in stretches.select(org).distinct().limit(NAMED_ORGANISATIONS + 1).collect()]
    organisations = tuple(sorted(named)) if len(named) <= NAMED_ORGANISATIONS else None
    return Reach(organisations=organisations, **found.asDict())


def reached(reach: Reach, table: TableSpec, prefix: str = TARGET) -> Column:
    """The rows of a table that a batch can touch, told by literals alone."""
    assert table.mutable is not None

    def column(name: str) -> Column:
        return F.col(f"{prefix}.{name}")

    if reach.organisations is not None:
        conditions = [column(ORG_COLUMN).isin(*reach.organisations)]
    else:
        conditions = [column(ORG_COLUMN).between(F.lit(reach.first_organisation), F.lit(reach.last_organisation))]
    conditions.append(column(table.mutable.origin).between(F.lit(reach.first_id), F.lit(reach.last_id)))
    if reach.since is not None:
        conditions += [column("event_time") >= F.lit(reach.since), column("event_date") >= F.lit(reach.since.date())]
    if reach.until is not None:
        conditions += [column("event_time") < F.lit(reach.until), column("event_date") <= F.lit(reach.until.date())]
    return _all_of(conditions)


class TableMerge:
    """Merges stretches into one mutable table of the lake.

    Args:
        stretches: columns as of `differences.joined`; they do not overlap, so that a row meets one at most.
    """

    def __init__(self, table: TableSpec, stretches: DataFrame, reach: Reach) -> None:
        assert table.mutable is not None
        self._table = table
        self._mutable = table.mutable
        self._stretches = stretches
        self._reach = reach
        self._types = table.column_types()

    def execute(self, session: SparkSession, uri: str, *, batch: int) -> None:
        """Merge, as one commit. Settings of the commit are the session's."""
        (
            DeltaTable.forPath(session, uri)
            .alias(TARGET)
            .merge(self._stretches.alias(SOURCE), self.condition())
            .whenMatchedUpdate(set=self._changes(batch))
            .execute()
        )

    def condition(self) -> Column:
        """The rows that come to something else than they are."""
        return _all_of([reached(self._reach, self._table), self._same(), self._differs()])

    def touched(self, rows: DataFrame) -> DataFrame:
        """The rows of the table that `execute` would change, for people."""
        return rows.alias(TARGET).join(self._stretches.alias(SOURCE), self.condition())

    def _same(self) -> Column:
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
        return ~_all_of([self._present(name).eqNullSafe(value) for name, value in self._values().items()])

    def _present(self, name: str) -> Column:
        present = F.col(f"{TARGET}.{name}")
        return F.coalesce(present, F.lit(False)) if name == DELETED_COLUMN else present

    def _values(self) -> dict[str, Column]:
        """What the row's columns come to: the id, each field as it was set or else as it arrived, deleted or not."""
        values = {self._mutable.id: F.col(f"{SOURCE}.final_id")}
        for name, origin in self._mutable.fields.items():
            given = F.col(f"{SOURCE}.fields")[F.lit(name)]
            values[name] = F.coalesce(as_type(given, self._types[name]), F.col(f"{TARGET}.{origin}"))
        return {**values, DELETED_COLUMN: F.col(f"{SOURCE}.deleted")}

    def _changes(self, batch: int) -> dict[str, str | Column]:
        values: dict[str, str | Column] = {f"`{name}`": value for name, value in self._values().items()}
        return {**values, f"`{MUTATION_COLUMN}`": F.lit(batch).cast("long")}


def as_type(given: Column, kind: str) -> Column:
    """A text as a value of a column's type, null where it is none; a list, map or struct is given as JSON."""
    if kind == "string":
        return given
    return given.try_cast(kind) if isinstance(parse_type(kind), Primitive | Decimal) else F.from_json(given, kind)


def not_fitting(stretches: DataFrame, table: TableSpec) -> int:
    """How many values that updates set are none of their column's type. Rows keep what arrived then."""
    assert table.mutable is not None
    types = table.column_types()
    given = F.col("fields")
    wrong = [
        F.when(given[F.lit(name)].isNotNull() & as_type(given[F.lit(name)], types[name]).isNull(), 1).otherwise(0)
        for name in table.mutable.fields
        if types[name] != "string"
    ]
    if not wrong:
        return 0
    found = stretches.agg(F.sum(functools.reduce(operator.add, wrong))).first()
    return int(found[0] or 0) if found is not None else 0


def merge_settings(*, target_bytes: int, cores: int) -> dict[str, str]:
    """Settings of the session a MERGE runs in: parallelism from the bytes it may rewrite, files by partition."""
    tasks = max(cores, min(MAX_TASKS, -(-target_bytes // BYTES_PER_TASK)))
    return {
        "spark.sql.shuffle.partitions": str(tasks),
        # Rows are shuffled by partition before they are written; partitions beyond a file's size are split.
        "spark.databricks.delta.optimizeWrite.enabled": "true",
        "spark.databricks.delta.optimizeWrite.binSize": f"{BYTES_PER_TASK >> 20}MB",
    }


def transaction(app_id: str, version: int) -> Mapping[str, str]:
    """Settings under which the next commit of a session lands once."""
    return {TRANSACTION_APP: app_id, TRANSACTION_VERSION: str(version)}


def _all_of(conditions: Sequence[Column]) -> Column:
    return functools.reduce(operator.and_, conditions)
