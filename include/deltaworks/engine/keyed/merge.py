"""Merges rows into a keyed table in one commit: with delta-rs in this process, or with Spark for large merges.

There are two kinds of merges, both idempotent:

- *newer*: replaces a key's row if the merged row is newer. Such merges may run in any order and repeatedly.
- *exact*: always replaces a key's row, and deletes keys without a row. Its rows are correct for one history version, so
  the commit has that version as its transaction.

Both check the owner epoch. delta-rs does not enforce transactions. So transaction and epoch are checked in a snapshot,
and the merge is committed on that snapshot without delta-rs' own retries; after a conflict both are checked again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError

from deltaworks.engine.keyed.latest_by_key import SOURCE, TARGET, key_ranges, newer_condition, same_key_condition
from deltaworks.errors import TransientError
from deltaworks.specs.keyed import KeyedTable
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import (
    Step,
    check_owner_epoch,
    commit_attempts,
    commit_step,
    contention_error,
    post_commit_properties,
    refresh,
    transaction_version,
)
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.files import partition_value_text
from deltaworks.tables.free_memory import free_memory_bytes
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Engine = Literal["spark", "delta_rs"]
#: Flag column of source rows whose key must be deleted.
KEY_REMOVED = "_gone"
#: Maximum bytes of files that delta-rs may rewrite.
MAX_REWRITE_BYTES = 1 << 30
#: Memory that a delta-rs merge needs per byte of rewritten files, and the fraction of free memory it may use. The
#: stream needs the rest.
MEMORY_PER_BYTE = 10
MEMORY_FRACTION = 0.5
_SPARK_TRANSACTION = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGuard:
    """Guards of a merge commit: the owner epoch, and the step. The step is None for all but the last part of a large
    merge.
    """

    owner_step: Step
    step: Step | None
    user_metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """Result of a merge. The `engine` is empty if the step was already committed, so nothing was merged."""

    engine: Engine | Literal[""]
    version: int
    rows: int = 0
    files_added: int = 0


def choose_engine(target: DeltaTable, table: KeyedTable, rows: pa.Table) -> tuple[Engine, str]:
    """Chooses delta-rs or Spark for merging these rows; returns the reason if it is Spark. Reads only the
    table's log."""
    reasons = reasons_against_rewriting(target)
    if reasons:
        return "spark", f"it has {', '.join(reasons)}"
    rewrite_bytes = _affected_bytes(target, table, rows)
    if rewrite_bytes > MAX_REWRITE_BYTES:
        return "spark", f"{rewrite_bytes:,} bytes may be rewritten, more than {MAX_REWRITE_BYTES:,}"
    free = free_memory_bytes()
    if rewrite_bytes * MEMORY_PER_BYTE > free * MEMORY_FRACTION:
        return (
            "spark",
            f"{rewrite_bytes:,} bytes may be rewritten, too many for {free:,} bytes of free memory",
        )
    return "delta_rs", ""


def _affected_bytes(target: DeltaTable, table: KeyedTable, rows: pa.Table) -> int:
    """Returns the size of the files that the merge may rewrite: the partitions of the rows' keys, or all files."""
    files = pa.table(target.get_add_actions(flatten=True))
    is_affected = [True] * files.num_rows
    for keys in key_ranges(table, rows):
        if keys.column in table.partition_by and keys.partition_texts is not None:
            partition_texts = map(partition_value_text, files.column(f"partition.{keys.column}").to_pylist())
            is_affected = [
                affected and text in keys.partition_texts
                for affected, text in zip(is_affected, partition_texts, strict=True)
            ]
    sizes = files.column("size_bytes").to_pylist()
    return sum(size for size, affected in zip(sizes, is_affected, strict=True) if affected)


class KeyedMerge:
    """Merges rows into one keyed table. Used by one thread.

    Args:
        spark: None if not available; then a merge that needs Spark raises.
    """

    def __init__(self, spark: SparkSession | None, lake: Lake, key: str, table: KeyedTable, target: DeltaTable) -> None:
        self._spark = spark
        self._lake = lake
        self._key = key
        self._table = table
        self._target = target

    def merge(self, rows: pa.Table, *, exact: bool, guard: MergeGuard) -> MergeOutcome:
        """Merges rows, at most one per key. With `exact`, rows also have the flag column `KEY_REMOVED`.

        Raises:
            FencedError: a successor has taken over.
            ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
            TransientError: SPARK_UNAVAILABLE.
        """
        for _ in commit_attempts():
            if self._is_committed(guard):
                return MergeOutcome(engine="", version=self._target.version())
            if not rows.num_rows:
                return self._commit_step_only(guard)
            engine, reason = choose_engine(self._target, self._table, rows)
            if engine == "spark":
                return self._merge_by_spark(rows, exact=exact, guard=guard, reason=reason)
            try:
                return self._merge_by_delta_rs(rows, exact=exact, guard=guard)
            except CommitFailedError:
                continue
        raise contention_error(self._target.table_uri, "merge", advice="resume the table")

    def _is_committed(self, guard: MergeGuard) -> bool:
        """Loads the newest snapshot and returns whether it has the step."""
        refresh(self._target)
        check_owner_epoch(self._target, guard.owner_step)
        if guard.step is None:
            return False
        committed = transaction_version(self._target, guard.step.app_id)
        return committed is not None and committed >= guard.step.version

    def _commit_step_only(self, guard: MergeGuard) -> MergeOutcome:
        """Commits the step without rows."""
        if guard.step is not None:
            commit_step(self._target, [], step=guard.step, owner=guard.owner_step, user_metadata=guard.user_metadata)
        return MergeOutcome(engine="delta_rs", version=self._target.version())

    def _merge_by_delta_rs(self, rows: pa.Table, *, exact: bool, guard: MergeGuard) -> MergeOutcome:
        transactions = [Transaction(guard.owner_step.app_id, guard.owner_step.version)]
        if guard.step is not None:
            transactions.append(Transaction(guard.step.app_id, guard.step.version))
        values = {f'"{name}"': f'{SOURCE}."{name}"' for name in self._table.types}
        merger = self._target.merge(
            rows,
            _merge_condition(self._table, rows, quote='"'),
            source_alias=SOURCE,
            target_alias=TARGET,
            # The source rows are in memory, so their key range is known and delta-rs can skip files.
            streamed_exec=False,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": guard.user_metadata},
                max_commit_retries=0,
                app_transactions=transactions,
            ),
            post_commithook_properties=post_commit_properties(self._target),
        )
        if exact:
            is_removed = f'{SOURCE}."{KEY_REMOVED}"'
            merger = merger.when_matched_delete(is_removed).when_matched_update(values)
            merger = merger.when_not_matched_insert(values, f"NOT {is_removed}")
        else:
            merger = merger.when_matched_update(values, newer_condition(self._table, quote='"'))
            merger = merger.when_not_matched_insert(values)
        metrics = merger.execute()
        if not metrics["num_target_files_added"] and not metrics["num_target_files_removed"]:
            # delta-rs makes no commit if a merge changes nothing.
            return self._commit_step_only(guard)
        row_metrics = ("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted")
        return MergeOutcome(
            engine="delta_rs",
            version=self._target.version(),
            rows=sum(int(metrics[name]) for name in row_metrics),
            files_added=int(metrics["num_target_files_added"]),
        )

    def _merge_by_spark(self, rows: pa.Table, *, exact: bool, guard: MergeGuard, reason: str) -> MergeOutcome:
        """Merges with Spark. Its commit has the step's transaction only; the owner epoch was checked before.

        A successor that takes over in between does no harm: an exact merge fails on the step's transaction, and a newer
        merge is valid for any owner.
        """
        if self._spark is None:
            raise TransientError(
                "SPARK_UNAVAILABLE", f"Merging {self._key} needs Spark, which is not running here: {reason}."
            )
        from delta.tables import DeltaTable as SparkTable

        from deltaworks.tables.spark.session import USER_METADATA, override_settings, retry_conflicts

        # A separate session, because commit settings are session settings.
        session = self._spark.newSession()
        source = session.createDataFrame(rows)
        values: dict[str, str | Column] = {f"`{name}`": f"{SOURCE}.`{name}`" for name in self._table.types}
        for attempt in retry_conflicts(self._table.name):
            if self._is_committed(guard):
                break
            with attempt, override_settings(session, _commit_settings(guard, USER_METADATA)):
                target = SparkTable.forPath(session, self._lake.storage.spark_uri(self._key)).alias(TARGET)
                merger = target.merge(source.alias(SOURCE), _merge_condition(self._table, rows, quote="`"))
                if exact:
                    is_removed = f"{SOURCE}.`{KEY_REMOVED}`"
                    merger = merger.whenMatchedDelete(is_removed).whenMatchedUpdate(set=values)
                    merger = merger.whenNotMatchedInsert(f"NOT {is_removed}", values)
                else:
                    newer = newer_condition(self._table, quote="`")
                    merger = merger.whenMatchedUpdate(newer, values)
                    merger = merger.whenNotMatchedInsert(values=values)
                merger.execute()
        refresh(self._target)
        return MergeOutcome(engine="spark", version=self._target.version(), rows=rows.num_rows)


def _merge_condition(table: KeyedTable, rows: pa.Table, *, quote: str) -> str:
    """Returns the merge condition, with the key range as literals for file skipping."""
    conditions = []
    for keys in key_ranges(table, rows):
        column = f"{TARGET}.{quote}{keys.column}{quote}"
        if keys.column in table.partition_by and keys.values is not None:
            conditions.append(f"{column} IN ({', '.join(_literal(value, quote) for value in keys.values)})")
        else:
            bounds = (_literal(end, quote) for end in (keys.minimum, keys.maximum))
            conditions.append(f"{column} BETWEEN {' AND '.join(bounds)}")
    return " AND ".join([*conditions, same_key_condition(table, quote=quote)])


def _literal(value: str | int | dt.date, quote: str) -> str:
    """Returns a value as a SQL literal of Spark or delta-rs, distinguished by their identifier quote."""
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, int):
        return str(value)
    # Spark strings use backslash escapes; doubled quotes are not one quote there.
    text = value.replace("\\", "\\\\").replace("'", "\\'") if quote == "`" else value.replace("'", "''")
    return f"'{text}'"


def _commit_settings(guard: MergeGuard, metadata: str) -> Mapping[str, str]:
    settings = {metadata: guard.user_metadata, "spark.databricks.delta.optimizeWrite.enabled": "true"}
    if guard.step is not None:
        app_id, version = _SPARK_TRANSACTION
        settings |= {app_id: guard.step.app_id, version: str(guard.step.version)}
    return settings


def with_removed_keys(table: KeyedTable, rows: pa.Table, removed_keys: pa.Table) -> pa.Table:
    """Returns the source of an exact merge: the rows, followed by one flagged row per removed key."""
    schema = arrow_schema(dict(table.types)).append(pa.field(KEY_REMOVED, pa.bool_()))
    latest = rows.append_column(KEY_REMOVED, pa.repeat(pa.scalar(False), rows.num_rows))
    values = [
        removed_keys.column(name) if name in table.by else _nulls(removed_keys.num_rows, schema.field(name).type)
        for name in table.types
    ]
    removed = [*values, pa.chunked_array([pa.repeat(pa.scalar(True), removed_keys.num_rows)])]
    return pa.concat_tables([latest, pa.Table.from_arrays(removed, schema=schema)])


def _nulls(count: int, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(count, kind)])
