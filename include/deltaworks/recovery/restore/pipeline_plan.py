"""Plans a start over of a pipeline, or its rollback to one batch: the action for each table and the rows it loses.

Later batches are read again from the source in a new generation, so all their rows are removed, including quarantined
ones and added columns. Writes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_person, current_run
from deltaworks.control.records.generations import StartOver, TableLoss
from deltaworks.engine.batch_history import BatchHistory, BatchSummary
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA, QUARANTINE_TABLE
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_plan import TableRestorePlanner, missing_files, with_columns_from
from deltaworks.specs.live import LIVE_PARTITION
from deltaworks.specs.mutation import INTERVALS_COLUMNS, NAMES_COLUMNS, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.file_workers import count_rows, table_rows
from deltaworks.tables.files_commit import StateDifference
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.steps import read_last_completed
from deltaworks.tables.table_swap import table_content

#: A table's columns (declared types by name, or an Arrow schema) and its partition columns.
DeclaredTable = tuple[Mapping[str, str] | pa.Schema, tuple[str, ...]]


class PipelineRestorePlanner:
    """Plans start overs and rollbacks of one pipeline. Not thread-safe."""

    def __init__(self, spec: PipelineSpec, lake: Lake, home: PipelineHome) -> None:
        self._spec = spec
        self._pipeline = spec.pipeline
        self._lake = lake
        self._home = home
        #: Missing files of the version to restore, by table.
        self.missing_files: dict[str, tuple[str, ...]] = {}

    def plan_pipeline(self, restore_point: RestorePoint | None, *, reason: str) -> StartOver:
        """Plans a rollback to `restore_point`, or a start over without one. Stores the missing files in
        `missing_files`.

        Raises:
            ConfigError: RESTORE_POINT_INVALID for a version, which applies to one table only; BATCH_UNKNOWN.
            ContractError: RESTORE_UNSUPPORTED; RESTORE_GENERATION_ENDED, the batch was abandoned;
                LEDGER_WITHOUT_OFFSET; ROWS_UNKNOWN; and the errors of reading a log.
        """
        generation = self._home.generations.current()
        last = read_last_completed(self._lake, self._pipeline, generation)
        batch = None if restore_point is None else self._last_remaining_batch(restore_point, generation)
        tables = [] if batch is None else list(self._table_losses(batch))
        put_back = {table.table for table in tables}
        for name in declared_tables(self._spec):
            table = self._lake.open(paths.table(self._pipeline, name))
            if table is not None and name not in put_back:
                rows = table_rows(self._lake, paths.table(self._pipeline, name), table)
                tables.append(TableLoss(table=name, **{**asdict(table_content(table)), "rows": rows}))
        return StartOver(
            pipeline=self._pipeline,
            generation=generation + 1,
            first_batch=0 if last is None else last + 1,
            start=None if batch is None else dict(batch.end_offset or {}),
            to_batch=None if batch is None else batch.batch_id,
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            tables=tuple(tables),
            by=current_person(),
            reason=reason,
            run=current_run(),
            at=iso_now(),
        )

    def completed_at(self, batch: int) -> dt.datetime | None:
        """Returns when a batch was complete; None if the ledger does not say."""
        return BatchHistory(self._lake, self._home.objects, self._spec).detail(batch).summary.completed_at

    def _last_remaining_batch(self, point: RestorePoint, generation: int) -> BatchSummary:
        """Returns the last batch to keep; the next generation starts after it."""
        history = BatchHistory(self._lake, self._home.objects, self._spec)
        batch = history.detail(self._batch_id(point, history)).summary
        survives = self._home.start_overs.last_surviving_batch(batch.generation, current=generation)
        if survives is not None and batch.batch_id > survives:
            raise ContractError(
                "RESTORE_GENERATION_ENDED",
                f"Batch {batch.batch_id} of {self._pipeline!r} was abandoned; its generation ended with {survives}.",
                hint=f"`deltaworks batches {self._pipeline}` lists the batches that can be restored.",
            )
        if batch.end_offset is None:
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger of {self._pipeline!r} has no end offset for batch {batch.batch_id}.",
                hint="Restore another batch.",
            )
        return batch

    def _batch_id(self, point: RestorePoint, history: BatchHistory) -> int:
        if point.batch is not None:
            return point.batch
        if point.time is None:
            raise ConfigError(
                "RESTORE_POINT_INVALID",
                "A version applies to one table; a pipeline can be rolled back to a batch or a time.",
                hint="Give --to-batch or --to-time, or name the table.",
            )
        complete = [b.batch_id for b in history.completed() if b.completed_at and b.completed_at <= point.time]
        if not complete:
            raise ConfigError(
                "BATCH_UNKNOWN",
                f"No batch of {self._pipeline!r} was complete at {point.time.isoformat()}.",
                hint=f"`deltaworks batches {self._pipeline}` lists them; `deltaworks pipelines start-over` is for all.",
            )
        return complete[-1]

    def _table_losses(self, batch: BatchSummary) -> Iterator[TableLoss]:
        """Yields the loss of each bronze table and of quarantine, with the table's version at the completion of the
        batch.
        """
        for name in (*(table.name for table in self._spec.tables), QUARANTINE_TABLE):
            if self._lake.open(paths.table(self._pipeline, name)) is None:
                continue
            planner = TableRestorePlanner(self._spec, name, self._lake, self._home)
            then, now = planner.states_at_batch(batch.batch_id, batch.completed_at)
            removed = [added for file, added in now.files.items() if file not in then.files]
            target = with_columns_from(then, now)
            self.missing_files[name] = tuple(missing_files(self._lake, now, target))
            counts = StateDifference.between(now, target)
            yield TableLoss(
                table=name,
                version=now.version,
                rows=count_rows(self._lake, now.key, removed),
                files=counts.files_removed,
                bytes=counts.bytes_removed,
                restore_to=then.version,
            )


def declared_tables(spec: PipelineSpec) -> dict[str, DeclaredTable]:
    """Returns columns and partitioning of all bronze, quarantine, mutation state and live tables by name."""
    tables: dict[str, DeclaredTable] = {table.name: (table.column_types(), table.partition_by) for table in spec.tables}
    tables[QUARANTINE_TABLE] = (QUARANTINE_SCHEMA, QUARANTINE_PARTITION)
    if spec.mutations is not None:
        # Derived from the requests, which are read again.
        tables[spec.mutations.names] = (NAMES_COLUMNS, (ORG_COLUMN,))
        tables[spec.mutations.intervals] = (INTERVALS_COLUMNS, (ORG_COLUMN,))
    return tables | {
        live.name: (live.count_columns(spec.table(live.reads).column_types()), LIVE_PARTITION)
        for live in spec.aggregation_tables
    }


def restored_versions(lake: Lake, record: StartOver) -> dict[str, int]:
    """Returns the version of each restored table, by its commit metadata; recreated tables are omitted."""
    versions = {}
    for loss in record.tables:
        key = paths.table(record.pipeline, loss.table)
        table = lake.open(key)
        if loss.restore_to is None or table is None:
            continue
        step = (f"{record.pipeline}/start_over/{loss.table}", record.generation)
        for commit in commit_history(lake, key, newest=table.version(), limit=table.version() - loss.version):
            if (commit.metadata.get("step"), commit.metadata.get("step_version")) == step:
                versions[loss.table] = commit.version
    return versions
