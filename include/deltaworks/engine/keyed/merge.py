"""Merges the latest row of each key into a keyed table: with delta-rs in this process, or with Spark for large merges.

Rows have one total order: the `newest_by` columns, nulls first, then `_seq` and `_position`, which are unique together.
So the result does not depend on how rows are split, ordered or repeated.

There are two kinds of merges, both idempotent and in one commit:

- *newer*: replaces a key's row if the merged row is newer. Such merges may run in any order and repeatedly.
- *exact*: always replaces a key's row, and deletes keys without a row. Its rows are looked up in the history table at
  one version, so the commit has that version as its transaction.

Both check the owner epoch. delta-rs does not enforce transactions. So transaction and epoch are checked in a snapshot,
and the merge is committed on that snapshot without delta-rs' own retries; after a conflict both are checked again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties

from deltaworks.errors import TransientError
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.arrow_types import arrow_schema, rows_as_declared
from deltaworks.tables.commit import (
    Step,
    check_owner_epoch,
    commit_step,
    guarded_commit,
    post_commit_properties,
    refresh,
    transaction_version,
)
from deltaworks.tables.duckdb_session import duckdb_session, free_memory_bytes
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.files import partition_value_text
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, stats_of

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

# The latest row per key among rows in memory.

SOURCE, TARGET = "source", "target"
#: Arrow bytes that are buffered before they are reduced to the latest row per key.
BUFFERED_BYTES = 128 << 20
_ROW_INDEX = "row_index"


def to_keyed_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """Converts history rows to keyed rows: drops rows without a key, and flags rows that delete their key.

    Rows that a mutation deleted from the history are dropped too.
    """
    if table.is_history_mutable:
        rows = rows.filter(pc.invert(pc.fill_null(rows.column(DELETED_COLUMN), False)))
    for name in table.by:
        column = rows.column(name)
        if name in table.partition_by and pa.types.is_string(column.type):
            # Delta stores an empty partition value as null.
            rows = rows.filter(pc.not_equal(column, ""))
        elif column.null_count:
            rows = rows.filter(pc.is_valid(column))
    schema = arrow_schema(dict(table.types))
    if table.has_tombstones:
        deleted = _is_deleted(table, rows)
        if DELETED_COLUMN in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(DELETED_COLUMN), DELETED_COLUMN, deleted)
        else:
            rows = rows.append_column(DELETED_COLUMN, deleted)
    return rows.select(schema.names).cast(schema)


def _is_deleted(table: KeyedTable, rows: pa.Table) -> pa.Array:
    """Returns a mask of the rows that delete their key: every `deleted_when` column has one of its declared values."""
    deleted = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
    for name, values in table.deleted_when.items():
        column = rows.column(name)
        deleted = pc.and_(deleted, pc.is_in(column, value_set=pa.array(values, column.type)))
    return deleted


def latest_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """Returns the latest row per key, in the original order. `rows` come from `to_keyed_rows`."""
    if rows.num_rows <= 1:
        return rows
    ordering = pa.Table.from_arrays(
        [_comparable(rows.column(name)) for name in (*table.by, *table.sort_columns)],
        names=[*(f"k{index}" for index in range(len(table.by))), *_order_names(table)],
    ).append_column(_ROW_INDEX, pa.array(np.arange(rows.num_rows)))
    keys = ", ".join(f"k{index}" for index in range(len(table.by)))
    order = ", ".join(f"{name} DESC NULLS LAST" for name in _order_names(table))
    with duckdb_session() as connection:
        connection.register("narrow", ordering)
        latest = connection.sql(
            f"SELECT {_ROW_INDEX} FROM narrow QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {order}) = 1 "
            f"ORDER BY {_ROW_INDEX}"
        ).to_arrow_table()
    return rows if latest.num_rows == rows.num_rows else rows.take(latest.column(0))


def _order_names(table: KeyedTable) -> list[str]:
    return [f"o{index}" for index in range(len(table.sort_columns))]


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # Compared as microseconds, independent of the session's time zone.
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def iter_latest_rows(table: KeyedTable, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Reduces many parts to the latest row per key. Yields one table, or several if the keys exceed the buffer.

    With several tables a key may occur in more than one; merging each of them still yields the latest row.
    """
    buffered: list[pa.Table] = []
    buffered_bytes = 0
    for part in parts:
        rows = to_keyed_rows(table, part)
        buffered.append(rows)
        buffered_bytes += rows.nbytes
        if buffered_bytes >= BUFFERED_BYTES:
            reduced = latest_rows(table, pa.concat_tables(buffered))
            buffered, buffered_bytes = [reduced], reduced.nbytes
            if buffered_bytes >= BUFFERED_BYTES // 2:
                yield reduced
                buffered, buffered_bytes = [], 0
    if buffered:
        yield latest_rows(table, pa.concat_tables(buffered))


def same_key_condition(table: KeyedTable, *, quote: str) -> str:
    """Returns the SQL condition that source and target row have the same key."""
    columns = (f"{quote}{name}{quote}" for name in table.by)
    return " AND ".join(f"{TARGET}.{column} = {SOURCE}.{column}" for column in columns)


def newer_condition(table: KeyedTable, *, quote: str) -> str:
    """Returns the SQL condition that the source row is newer than the target row. It never evaluates to null."""
    condition = "false"
    for name in reversed(table.sort_columns):
        ours, theirs = f"{SOURCE}.{quote}{name}{quote}", f"{TARGET}.{quote}{name}{quote}"
        greater = f"({theirs} IS NULL AND {ours} IS NOT NULL) OR coalesce({ours} > {theirs}, false)"
        condition = f"({greater} OR (({ours} IS NOT DISTINCT FROM {theirs}) AND {condition}))"
    return condition


# The latest rows of given keys in the history table.

#: Keys per pass over the history; their latest rows are held in memory.
KEYS_PER_PASS = 500_000
#: Maximum distinct values of a column to list individually for file skipping.
MAX_LISTED_VALUES = 1_000


def distinct_keys(table: KeyedTable, parts: Iterable[pa.Table]) -> pa.Table:
    """Returns the distinct non-null keys of these rows. `parts` have the key columns."""
    keys = arrow_schema({name: table.history_types[name] for name in table.by}).empty_table()
    buffered: list[pa.Table] = []
    for part in parts:
        buffered.append(part.drop_null())
        if sum(buffered_part.nbytes for buffered_part in buffered) >= BUFFERED_BYTES:
            keys, buffered = _deduplicate(table, [keys, *buffered]), []
    return _deduplicate(table, [keys, *buffered])


def _deduplicate(table: KeyedTable, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).group_by(list(table.by)).aggregate([]).select(list(table.by))


def key_chunks(keys: pa.Table) -> Iterator[pa.Table]:
    """Yields the keys in sorted chunks of one pass each, so that the keys of a pass are in few files."""
    sorted_keys = keys.sort_by([(name, "ascending") for name in keys.column_names])
    for start in range(0, sorted_keys.num_rows, KEYS_PER_PASS):
        yield sorted_keys.slice(start, KEYS_PER_PASS)


def latest_rows_of_keys(table: KeyedTable, parts: Iterable[pa.Table], keys: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the latest history row of each key as one table, and the keys that have no row."""
    rows = arrow_schema(dict(table.types)).empty_table()
    if not keys.num_rows:
        return rows, keys
    reduced = list(iter_latest_rows(table, (_rows_with_keys(table, part, keys) for part in _coalesced(parts))))
    if reduced:
        rows = latest_rows(table, pa.concat_tables(reduced))
    return rows, _keys_without_rows(table, keys, rows)


def files_with_keys(table: KeyedTable, files: Iterable[Action], keys: pa.Table) -> list[Action]:
    """Returns the history files that may contain one of these keys, by partition and statistics."""
    ranges = key_ranges(table, keys)
    return [file for file in files if all(_may_contain(file, key_range) for key_range in ranges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Range of a key column, for file skipping: minimum, maximum, and all values if there are few.

    The attribute `partition_texts` has these values in the Delta log's text form.
    """

    column: str
    minimum: Any
    maximum: Any
    values: tuple[Any, ...] | None
    partition_texts: frozenset[str | None] | None


def key_ranges(table: KeyedTable, keys: pa.Table) -> list[KeyRange]:
    """Returns the ranges of those key columns whose order in Delta statistics is known (texts and numbers)."""
    ranges = []
    for name in table.by:
        if table.history_types[name] not in ("string", "int", "long", "date") or not keys.num_rows:
            continue
        distinct = pc.unique(keys.column(name))
        bounds = pc.min_max(distinct).as_py()
        values = tuple(distinct.to_pylist()) if len(distinct) <= MAX_LISTED_VALUES else None
        texts = None if values is None else frozenset(map(partition_value_text, values))
        ranges.append(
            KeyRange(column=name, minimum=bounds["min"], maximum=bounds["max"], values=values, partition_texts=texts)
        )
    return ranges


def _may_contain(file: Action, keys: KeyRange) -> bool:
    partition = file.get("partitionValues") or {}
    if keys.column in partition:
        text = partition[keys.column]
        return text is not None and (keys.partition_texts is None or text in keys.partition_texts)
    stats = stats_of(file)
    low, high = (stats.get(side, {}).get(keys.column) for side in ("minValues", "maxValues"))
    minimum, maximum = (
        value.isoformat() if isinstance(value, dt.date) else value for value in (keys.minimum, keys.maximum)
    )
    return (low is None or low <= maximum) and (high is None or high >= minimum)


def _coalesced(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the same rows in fewer and larger tables."""
    buffered: list[pa.Table] = []
    buffered_bytes = 0
    for part in parts:
        buffered.append(part)
        buffered_bytes += part.nbytes
        if buffered_bytes >= BUFFERED_BYTES // 2:
            yield pa.concat_tables(buffered)
            buffered, buffered_bytes = [], 0
    if buffered:
        yield pa.concat_tables(buffered)


def _rows_with_keys(table: KeyedTable, rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Returns the rows that have one of the keys."""
    return rows.take(_join_on_key(table, rows, keys, "SEMI"))


def _keys_without_rows(table: KeyedTable, keys: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the keys that do not occur in `rows`."""
    return keys.take(_join_on_key(table, keys, rows, "ANTI"))


def _join_on_key(table: KeyedTable, left: pa.Table, right: pa.Table, kind: str) -> pa.ChunkedArray:
    """Returns the indices of rows in `left` with a matching key in `right` (SEMI), or without one (ANTI)."""
    columns = [f"k{index}" for index in range(len(table.by))]
    left_keys = pa.Table.from_arrays([left.column(name) for name in table.by], names=columns)
    with duckdb_session() as connection:
        connection.register("ours", left_keys.append_column(_ROW_INDEX, pa.array(np.arange(left.num_rows))))
        connection.register("theirs", right.select(list(table.by)).rename_columns(columns))
        query = f"SELECT {_ROW_INDEX} FROM ours {kind} JOIN theirs USING ({', '.join(columns)}) ORDER BY {_ROW_INDEX}"
        return connection.sql(query).to_arrow_table().column(0)


# The merge into the keyed table.

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

        def attempt(_: int) -> MergeOutcome:
            if self._is_committed(guard):
                return MergeOutcome(engine="", version=self._target.version())
            if not rows.num_rows:
                return self._commit_step_only(guard)
            engine, reason = choose_engine(self._target, self._table, rows)
            if engine == "spark":
                return self._merge_by_spark(rows, exact=exact, guard=guard, reason=reason)
            return self._merge_by_delta_rs(rows, exact=exact, guard=guard)

        return guarded_commit(self._target.table_uri, attempt, action="merge", advice="resume the table")

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

        from deltaworks.tables.spark_session import USER_METADATA, override_settings, retry_conflicts

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
    keys = removed_keys.select(list(table.by))
    removed = keys.append_column(KEY_REMOVED, pa.repeat(pa.scalar(True), keys.num_rows))
    batches = [rows_as_declared(batch, schema) for batch in removed.to_batches()]
    return pa.concat_tables([latest, pa.Table.from_batches(batches, schema=schema)])
