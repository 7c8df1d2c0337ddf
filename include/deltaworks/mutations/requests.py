"""Requests as they are resolved: their shape, which of them can act, and which of several moves at one time does.

A request at a time speaks of what an id names just before it. `rename`, `merge`, `delete` and `undelete` move what they
find, `update` sets its fields. Of several moves of one id at one time the last one (by `seq`, then by operation and
target) is the one that acts; updates act all, and field by field the last one counts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.specs.mutation import OPERATIONS, REQUEST_COLUMNS

#: What resolve takes, as a DDL string. `time` is when a request acts; `seq` orders requests of one time, a missing one
#: first. Further columns are ignored.
REQUEST_SCHEMA = ", ".join(
    f"{name} {kind}" for name, kind in {**REQUEST_COLUMNS, "time": "timestamp"}.items() if name != "name"
)
#: Operations that move what an id names to another id, ...
RENAMING = ("rename", "merge")
#: ... those that move it to the place of what was deleted under the id, and back, ...
DELETE, UNDELETE = "delete", "undelete"
#: ... and the one that leaves it where it is.
UPDATE = "update"
MOVING = (*RENAMING, DELETE, UNDELETE)

_KEY = ("org_id", "id", "time")


def refusal() -> Column:
    """Why a request cannot act on anything, null for one that can.

    Reasons: `UNKNOWN_OPERATION`, `INCOMPLETE` (no organisation, id or time, or no new id where one is needed) and
    `NO_FIELDS` of an update.
    """
    incomplete = F.col("org_id").isNull() | F.col("id").isNull() | F.col("time").isNull()
    without_target = F.col("op").isin(*RENAMING) & F.col("new_id").isNull()
    without_fields = (F.col("op") == UPDATE) & (F.coalesce(F.size("fields"), F.lit(0)) <= 0)
    known = F.coalesce(F.col("op").isin(*OPERATIONS), F.lit(False))
    return (
        F.when(~known, "UNKNOWN_OPERATION")
        .when(incomplete | without_target, "INCOMPLETE")
        .when(without_fields, "NO_FIELDS")
    )


def acting(requests: DataFrame) -> DataFrame:
    """The requests that act: of the moves of one id at one time the last, without those that lead nowhere. Those for
    the mapping table alone (`rename_name`) are none.

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
