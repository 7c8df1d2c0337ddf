"""Writers that commit a prepared batch to a table: through delta-rs, or through Spark for unsupported tables.

Both commit exactly the files of the prepared batch, under the batch's application transaction. A repeated commit
therefore changes nothing.
"""

from __future__ import annotations

import json
import re
import time
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import StepOutcome
from deltaworks.errors import ContractError, TransientError
from deltaworks.events.evolution import add_columns
from deltaworks.tables.commit import Step, check_owner_epoch, commit_step, refresh, transaction_version
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import batch_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Delta's error for a violated constraint or NOT NULL, up to the end of the line.
_CONSTRAINT_VIOLATION = re.compile(r"\[?DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT|NOT_NULL_COLUMN)[^\n]*")
_MAX_MESSAGE_LENGTH = 500


def staging_key(pipeline: str, table: str) -> str:
    """Returns the folder for files of a table that Spark commits; Spark reads them and appends their rows."""
    return paths.staging(pipeline, table)


class TableWriter(Protocol):
    """Commits one table's files of a prepared batch."""

    def commit(self, batch: PreparedBatch, prepared_table: PreparedTable, *, owner: Step) -> StepOutcome:
        """Commits the prepared files to their table, exactly once. Idempotent."""


class FanOutWriter:
    """Commits the files written by the fan-out through delta-rs. Each table's handle is used by one thread."""

    name = "fan_out"

    def __init__(self, tables: dict[str, DeltaTable]) -> None:
        self._tables = tables

    def commit(self, batch: PreparedBatch, prepared_table: PreparedTable, *, owner: Step) -> StepOutcome:
        started = time.monotonic()
        step = batch_step(batch.pipeline, batch.generation, prepared_table.table, batch.batch_id)
        files = [WrittenFile(**record) for record in prepared_table.files]
        if prepared_table.new_columns:
            added = commit_metadata(batch, step, "add_columns")
            add_columns(
                self._tables[prepared_table.table], prepared_table.new_columns, owner=owner, user_metadata=added
            )
        outcome = commit_step(
            self._tables[prepared_table.table],
            [file.add_action() for file in files],
            step=step,
            owner=owner,
            user_metadata=commit_metadata(batch, step, "append"),
        )
        return StepOutcome(
            step=step.app_id,
            table_name=prepared_table.table,
            writer=self.name,
            outcome="committed" if outcome.newly_committed else "already_committed",
            rows=prepared_table.rows,
            files=len(files),
            bytes=sum(file.size for file in files),
            delta_version=outcome.version,
            seconds=time.monotonic() - started,
        )


class SparkWriter:
    """Appends the rows of a table's files through Spark, with Delta's idempotent transaction.

    Delta skips an append whose transaction the table already has, and fails a concurrent one with the same transaction.
    So a former owner that resumes between check and append adds nothing.
    """

    name = "spark"

    def __init__(self, spark: SparkSession | None, lake: Lake, tables: dict[str, DeltaTable]) -> None:
        self._session = spark
        self._lake = lake
        self._tables = tables

    def commit(self, batch: PreparedBatch, prepared_table: PreparedTable, *, owner: Step) -> StepOutcome:
        started = time.monotonic()
        step = batch_step(batch.pipeline, batch.generation, prepared_table.table, batch.batch_id)
        handle = self._tables[prepared_table.table]
        refresh(handle)
        self._check_owner_epoch(batch.pipeline, owner)
        committed_batch = transaction_version(handle, step.app_id)
        is_committed = committed_batch is not None and committed_batch >= step.version
        files = [WrittenFile(**record) for record in prepared_table.files]
        if not is_committed:
            self._append(batch, prepared_table, files, step)
            refresh(handle)
        return StepOutcome(
            step=step.app_id,
            table_name=prepared_table.table,
            writer=self.name,
            outcome="already_committed" if is_committed else "committed",
            rows=prepared_table.rows,
            files=len(files),
            bytes=sum(file.size for file in files),
            delta_version=handle.version(),
            seconds=time.monotonic() - started,
        )

    @property
    def _spark(self) -> SparkSession:
        """The Spark session. Without one, this writer only finds out which steps are committed; the stream commits the
        others.
        """
        if self._session is None:
            raise TransientError("SPARK_UNAVAILABLE", ("Committing this table needs Spark, which is not running here."))
        return self._session

    def _check_owner_epoch(self, pipeline: str, owner: Step) -> None:
        """Checks the owner epoch in quarantine before the commit, because Spark commits one transaction only.

        A successor in between is harmless: it commits the same prepared batch under the same transaction.
        """
        fenced = Lake(self._lake.storage).open(paths.table(pipeline, "quarantine"))
        if fenced is not None:
            check_owner_epoch(fenced, owner)

    def _append(
        self, batch: PreparedBatch, prepared_table: PreparedTable, files: list[WrittenFile], step: Step
    ) -> None:
        target = self._lake.storage.spark_uri(paths.table(batch.pipeline, prepared_table.table))
        writer = (
            self._read_frame(batch.pipeline, prepared_table, files)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", step.app_id)
            .option("txnVersion", step.version)
            .option("userMetadata", commit_metadata(batch, step, "append"))
        )
        try:
            writer.save(target)
        except Exception as error:
            violation = _CONSTRAINT_VIOLATION.search(str(error))
            if violation is None:
                raise
            raise ContractError(
                "ROWS_REFUSED",
                f"Table {prepared_table.table!r} rejects rows of batch {batch.batch_id}: "
                f"{violation[0][:_MAX_MESSAGE_LENGTH]}",
            ) from error

    def _read_frame(self, pipeline: str, prepared_table: PreparedTable, files: list[WrittenFile]) -> DataFrame:
        """Reads the rows of the prepared files. Data files lack the partition columns, which are added; staged files
        have them.
        """
        storage = self._lake.storage
        if prepared_table.writer == self.name:
            staged = [storage.spark_uri(f"{staging_key(pipeline, prepared_table.table)}/{file.path}") for file in files]
            return self._spark.read.parquet(*staged)
        by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in files:
            address = storage.spark_uri(f"{paths.table(pipeline, prepared_table.table)}/{file.path}")
            by_partition.setdefault(tuple(file.partition.items()), []).append(address)
        frames = [
            self._with_partition(prepared_table.table, dict(values), addresses)
            for values, addresses in by_partition.items()
        ]
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)

    def _with_partition(self, table: str, values: dict[str, str | None], addresses: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        types = {field.name: str(json.loads(field.to_json())["type"]) for field in self._tables[table].schema().fields}
        frame = self._spark.read.parquet(*addresses)
        for name, value in values.items():
            frame = frame.withColumn(name, F.lit(value).cast(types[name]))
        return frame


def commit_metadata(batch: PreparedBatch, step: Step, operation: str) -> str:
    """Returns the `userMetadata` of a batch's commit."""
    return user_metadata(
        pipeline=batch.pipeline,
        batch=batch.batch_id,
        operation=operation,
        generation=batch.generation,
        step=step.app_id,
        step_version=step.version,
    )
