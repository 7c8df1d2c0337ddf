"""Merges a batch's counts into a live table, exactly once.

A batch has about a hundred rows. Delta's MERGE would run half a dozen Spark jobs for them and read the log several
times, so small merges are done and committed in this process. Spark does large ones. Both use the query and batch as
application transaction, so a repeated batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control.provenance import user_metadata
from deltaworks.specs.live import LIVE_PARTITION, LiveTableSpec
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, TableState, row_count, state_at
from deltaworks.tables.replace_where import FileEffect, Replacement, is_step_committed, replace_rows
from deltaworks.tables.spark.driver_collect import MAX_COLLECTED_ROWS, accepts_file_commits, collect_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPERATION = "live"
_DATE, _WINDOW = LIVE_PARTITION[0], "window_start"
_TRANSACTION_APP = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class LiveMerge:
    """The `foreachBatch` function of a live query.

    Args:
        key: key of the live table.
        before_merge: called before each merge; raising ends the query.
    """

    def __init__(
        self, lake: Lake, key: str, *, pipeline: str, live: LiveTableSpec, before_merge: Callable[[], None] | None
    ) -> None:
        self._lake, self._key, self._pipeline, self._live = lake, key, pipeline, live
        self._before_merge = before_merge
        self._key_columns = (_WINDOW, *live.group_by)

    def __call__(self, counts: DataFrame, batch_id: int) -> None:
        """Merges the counts of a batch unless it is already committed."""
        state = state_at(self._lake, self._lake.objects, self._key)
        # Cached, because a merge by Spark evaluates them several times.
        counts = counts.persist()
        try:
            rows = collect_rows(counts, state.metadata["schemaString"], max_rows=MAX_COLLECTED_ROWS)
            if rows is not None and not rows.num_rows:
                return
            if self._before_merge is not None:
                self._before_merge()
            # The query id is stored in the checkpoint. A new checkpoint has another id, so its batches, which count
            # from 0 again, are not mistaken for earlier ones.
            query_id = counts.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            step = Step(f"{self._pipeline}/live/{self._live.name}/{query_id}", batch_id)
            metadata = user_metadata(pipeline=self._pipeline, batch=batch_id, operation=OPERATION, query=query_id)
            if rows is None or not self._merge_in_process(rows, state, step, metadata):
                self._merge_by_spark(counts, step, metadata)
        finally:
            counts.unpersist()

    def _merge_in_process(self, rows: pa.Table, state: TableState, step: Step, metadata: str) -> bool:
        """Merges in this process if the batch and the affected rows are few. Returns False if Spark has to merge."""
        dates = {date.isoformat() for date in rows.column(_DATE).to_pylist()}
        affected = [added for added in state.files.values() if _date_of(added) in dates]
        if sum(map(row_count, affected)) > MAX_COLLECTED_ROWS or any(
            pa.types.is_floating(rows.schema.field(name).type) or pa.types.is_nested(rows.schema.field(name).type)
            for name in self._key_columns
        ):
            return False
        if not accepts_file_commits(self._lake, state, _DATE):
            return False
        replacement = Replacement(
            rows=[rows],
            classify_file=lambda added: FileEffect.REWRITTEN if _date_of(added) in dates else FileEffect.UNCHANGED,
            retained_rows=_retain_unreplaced_rows(rows, self._key_columns),
            predicate=f"`{_DATE}` {_in_list(dates)}",
            step=step,
            user_metadata=metadata,
        )
        outcome = replace_rows(self._lake, self._lake.objects, self._key, replacement, expected=state)
        # If nothing was committed, the table either has the batch, or its schema changed and Spark merges.
        return outcome.version is not None or is_step_committed(
            state_at(self._lake, self._lake.objects, self._key), step
        )

    def _merge_by_spark(self, counts: DataFrame, step: Step, metadata: str) -> None:
        from delta.tables import DeltaTable

        dates = {row[0].isoformat() for row in counts.select(_DATE).distinct().collect()}
        _set_transaction(counts.sparkSession, step, metadata)
        # Only literals prune the target's partitions; source values do not.
        key_conditions = [f"target.`{name}` <=> source.`{name}`" for name in self._key_columns]
        (
            DeltaTable.forPath(counts.sparkSession, self._lake.storage.spark_uri(self._key))
            .alias("target")
            .merge(counts.alias("source"), " AND ".join([f"target.{_DATE} {_in_list(dates)}", *key_conditions]))
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )


def _set_transaction(session: SparkSession, step: Step, metadata: str) -> None:
    """Sets the transaction of Spark's next commit in the session. Each streaming query has its own copy of the
    session."""
    session.conf.set(_TRANSACTION_APP, step.app_id)
    session.conf.set(_TRANSACTION_VERSION, str(step.version))
    session.conf.set(_USER_METADATA, metadata)


def _in_list(dates: Collection[str]) -> str:
    return f"in ({', '.join(sql_literal(date, 'date') for date in sorted(dates))})"


def _date_of(added: Action) -> str | None:
    date: str | None = (added.get("partitionValues") or {}).get(_DATE)
    return date


def _retain_unreplaced_rows(rows: pa.Table, key_columns: Sequence[str]) -> Callable[[pa.Table], list[pa.Table]]:
    """Returns a function that removes the rows of a file that `rows` replaces."""
    newer = set(_keys(rows, key_columns))

    def retain(present: pa.Table) -> list[pa.Table]:
        return [present.filter(pa.array([key not in newer for key in _keys(present, key_columns)], pa.bool_()))]

    return retain


def _keys(rows: pa.Table, key_columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in key_columns), strict=True)
