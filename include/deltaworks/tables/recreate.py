"""Recreates a table in one guarded commit: all rows out, the declared columns in. Earlier versions stay readable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from deltaworks.errors import TransientError
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, commit_step, refresh
from deltaworks.tables.features import reasons_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Writer features of a table whose files delta-rs may be trusted to take out.
_PLAIN = frozenset({"invariants", "checkConstraints", "timestampNtz", "vacuumProtocolCheck"})
_LISTS_FEATURES = 7


@dataclass(frozen=True, slots=True)
class TableContent:
    """What a version of a table holds, by its log."""

    version: int
    rows: int
    files: int
    bytes: int


def content(table: DeltaTable) -> TableContent:
    """What the open table holds now. Files without a count of rows count as none."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return TableContent(table.version(), 0, 0, 0)
    total = {name: pc.sum(files.column(name)).as_py() or 0 for name in ("num_records", "size_bytes")}
    return TableContent(table.version(), int(total["num_records"]), files.num_rows, int(total["size_bytes"]))


def needs_spark(table: DeltaTable, partition_by: Sequence[str]) -> list[str]:
    """Why delta-rs cannot recreate this table, in words; empty where it can."""
    reasons = reasons_for_spark(table)
    if list(table.metadata().partition_columns) != list(partition_by):
        reasons.append("other partition columns than declared")
    if table.protocol().min_writer_version >= _LISTS_FEATURES:
        reasons += [f"the feature {name}" for name in sorted(set(table.protocol().writer_features or ()) - _PLAIN)]
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        reasons.append("delta.appendOnly")
    return reasons


def recreate_table(
    table: DeltaTable,
    columns: Mapping[str, str] | pa.Schema,
    partition_by: Sequence[str],
    *,
    step: Step,
    owner: Step,
    user_metadata: str,
    spark: Callable[[], SparkSession] | None,
    uri: str,
) -> bool:
    """Take all rows out and declare these columns, once. Idempotent by its step, as a batch is.

    Args:
        columns: types by name as a pipeline declares them, or a schema; a table that Spark recreates needs types.
        spark: gives a session, for a table delta-rs cannot commit this to.
        uri: the table's address as Spark has it.

    Returns:
        Whether it landed now; False where it had landed before.

    Raises:
        TransientError: SPARK_ABSENT.
        FencedError, ConcurrencyError, ContractError: what `commit_step` raises.
    """
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(dict(columns))
    refresh(table)
    landed = table.transaction_version(step.app_id)
    if landed is not None and landed >= step.version:
        return False
    reasons = needs_spark(table, partition_by)
    if not reasons:
        recreate_as = Schema.from_arrow(schema)
        done = commit_step(table, [], step=step, owner=owner, user_metadata=user_metadata, recreate_as=recreate_as)
        return done.landed_now
    if spark is None or isinstance(columns, pa.Schema):
        raise TransientError(
            "SPARK_ABSENT", f"{table.table_uri} has {', '.join(reasons)}, so only Spark can recreate it."
        )
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    writer = spark().createDataFrame([], declared).write.format("delta").mode("overwrite").partitionBy(*partition_by)
    # Delta leaves a transaction out that it has, and fails the one of two that comes second.
    writer = writer.option("overwriteSchema", "true").option("userMetadata", user_metadata)
    writer.option("txnAppId", step.app_id).option("txnVersion", step.version).save(uri)
    return True
