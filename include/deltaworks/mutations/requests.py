"""Requests as they are resolved: their schema, which of them are effective, and how Spark runs a resolve.

A request refers to what its id names just before its time. `rename`, `merge`, `delete` and `undelete` move that,
`update` sets fields of it. Of several moves of one id at one time only the last one (by `seq`, then by operation and
target) takes effect; all updates do, and for each field the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.specs.mutation import OPERATIONS, REQUEST_COLUMNS
from deltaworks.tables.spark.session import session_settings

#: The input of `resolve`, as a DDL string. `time` is when a request takes effect; `seq` orders requests of one time, a
#: missing one first. Further columns are ignored.
REQUEST_SCHEMA = ", ".join(
    f"{name} {kind}" for name, kind in {**REQUEST_COLUMNS, "time": "timestamp"}.items() if name != "name"
)
#: Operations that move what an id names to another id,
RENAMING = ("rename", "merge")
#: those that move it to the place of deleted rows of the id, and back,
DELETE, UNDELETE = "delete", "undelete"
#: and the one that leaves it in place.
UPDATE = "update"
MOVING = (*RENAMING, DELETE, UNDELETE)

_KEY = ("org_id", "id", "time")

#: With at most this many requests, a process that has just started compiles and schedules longer than it computes.
FEW_REQUESTS = 20_000

#: Frames kept on the executors have no statistics, so Spark takes them for large and builds Bloom filters of a megabyte
#: for every key of a join, which it then ships with every task: three times the seconds of the last join.
_ALWAYS = {"spark.sql.optimizer.runtime.bloomFilter.enabled": "false"}
_FEW = {
    # One job a query and not one a stage, one task a stage, and expressions that are interpreted and not compiled.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def refusal() -> Column:
    """Why a request cannot take effect; null for one that can.

    Reasons: `UNKNOWN_OPERATION`, `INCOMPLETE` (no organisation, id or time, or no new id where one is needed) and
    `NO_FIELDS` of an update.
    """
    incomplete = F.col("org_id").isNull() | F.col("id").isNull() | F.col("time").isNull()
    without_target = F.col("op").isin(*RENAMING) & F.col("new_id").isNull()
    without_fields = (F.col("op") == UPDATE) & (F.coalesce(F.size("fields"), F.lit(0)) <= 0)
    is_operation = F.coalesce(F.col("op").isin(*OPERATIONS), F.lit(False))
    return (
        F.when(~is_operation, "UNKNOWN_OPERATION")
        .when(incomplete | without_target, "INCOMPLETE")
        .when(without_fields, "NO_FIELDS")
    )


def acting(requests: DataFrame) -> DataFrame:
    """The effective requests: of the moves of one id at one time the last, without those that lead nowhere.

    Requests for the mapping table alone (`rename_name`) are excluded.

    Columns: org_id, id, time, seq, op, fields, `target` (the id it moves to, null for an update), and whether it moves
    out of (`revives`) or into (`removes`) the place of the deleted.
    """
    op = F.col("op")
    target = F.when(op.isin(*RENAMING), F.col("new_id")).when(op.isin(DELETE, UNDELETE), F.col("id"))
    usable = requests.where(op.isin(*MOVING, UPDATE) & refusal().isNull()).select(
        *_KEY,
        "seq",
        "op",
        F.when(op == UPDATE, F.col("fields")).alias("fields"),
        target.alias("target"),
        (op == UNDELETE).alias("revives"),
        (op == DELETE).alias("removes"),
    )
    moves = F.col("target").isNotNull()
    last = Window.partitionBy(*_KEY, moves).orderBy(
        F.col("seq").desc_nulls_last(), op.desc(), F.col("target").desc_nulls_last()
    )
    ranked = usable.withColumn("rank", F.row_number().over(last))
    leads_nowhere = op.isin(*RENAMING) & (F.col("target") == F.col("id"))
    return ranked.where(~moves | ((F.col("rank") == 1) & ~leads_nowhere)).drop("rank")


@contextmanager
def resolving(session: SparkSession, *, requests: int) -> Iterator[None]:
    """Spark settings for a block that resolves `requests` many of them and materialises the result; restored after it.

    The result does not depend on them.
    """
    with session_settings(session, {**_ALWAYS, **(_FEW if requests <= FEW_REQUESTS else {})}):
        yield
