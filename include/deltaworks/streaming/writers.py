"""Commits a prepared batch to its tables: through delta-rs, or through Spark for tables delta-rs cannot commit to.

Both writers stand behind one interface and are guarded the same way: the step's transaction id is the batch's, so a
repeated commit changes nothing. What they commit is what the prepared batch names, never a second reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from deltaworks.control import paths
from deltaworks.control.prepared import PreparedBatch, PreparedTable
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.streaming.ledger import StepOutcome
from deltaworks.streaming.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, check_owner, commit_step, raise_owner, refresh
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_THREADS = 8


def step_of_table(pipeline: str, generation: int, table: str, batch_id: int) -> Step:
    """The application transaction of one table in one batch."""
    return Step(f"{pipeline}/g{generation}/{table}", batch_id)


def staging_key(pipeline: str, table: str) -> str:
    """Where the files of a table are staged that Spark commits."""
    return paths.pipeline_control(pipeline, f"staging/{table}")


class TableWriter(Protocol):
    """Commits one table's share of a prepared batch."""

    def commit(self, batch: PreparedBatch, share: PreparedTable, *, owner: Step) -> StepOutcome:
        """Make the share part of its table, once. Safe to call again with the same batch."""


class FanOutWriter:
    """Commits the files the fan-out wrote, through delta-rs. One handle per table, each used by one thread."""

    name = "fan_out"

    def __init__(self, tables: dict[str, DeltaTable]) -> None:
        self._tables = tables

    def commit(self, batch: PreparedBatch, share: PreparedTable, *, owner: Step) -> StepOutcome:
        started = time.monotonic()
        step = step_of_table(batch.pipeline, batch.generation, share.table, batch.batch_id)
        files = [WrittenFile(**record) for record in share.files]
        outcome = commit_step(
            self._tables[share.table],
            [file.add_action() for file in files],
            step=step,
            owner=owner,
            user_metadata=commit_metadata(batch, step, "append"),
        )
        return StepOutcome(
            step=step.app_id,
            table_name=share.table,
            writer=self.name,
            outcome="committed" if outcome.landed_now else "already_committed",
            rows=share.rows,
            files=len(files),
            bytes=sum(file.size for file in files),
            delta_version=outcome.version,
            seconds=time.monotonic() - started,
        )


class SparkWriter:
    """Appends the staged files of a table through Spark, with the batch as Delta's own idempotent transaction."""

    name = "spark"

    def __init__(self, spark: SparkSession, lake: Lake, tables: dict[str, DeltaTable]) -> None:
        self._spark = spark
        self._lake = lake
        self._tables = tables

    def commit(self, batch: PreparedBatch, share: PreparedTable, *, owner: Step) -> StepOutcome:
        started = time.monotonic()
        step = step_of_table(batch.pipeline, batch.generation, share.table, batch.batch_id)
        handle = self._tables[share.table]
        refresh(handle)
        self._check_owner(batch.pipeline, owner)
        before = handle.transaction_version(step.app_id)
        landed_before = before is not None and before >= step.version
        files = [WrittenFile(**record) for record in share.files]
        if not landed_before:
            self._append(batch, share.table, files, step)
            refresh(handle)
        return StepOutcome(
            step=step.app_id,
            table_name=share.table,
            writer=self.name,
            outcome="already_committed" if landed_before else "committed",
            rows=share.rows,
            files=len(files),
            bytes=sum(file.size for file in files),
            delta_version=handle.version(),
            seconds=time.monotonic() - started,
        )

    def _check_owner(self, pipeline: str, owner: Step) -> None:
        """Spark takes one transaction a commit, so the owner is compared beforehand, where delta-rs raised it.

        A successor that comes in between changes nothing: it commits the same prepared batch, under the same
        transaction.
        """
        fenced = Lake(self._lake.storage).open(paths.table(pipeline, "quarantine"))
        if fenced is not None:
            check_owner(fenced, owner)

    def _append(self, batch: PreparedBatch, table: str, files: list[WrittenFile], step: Step) -> None:
        storage = self._lake.storage
        staged = [storage.spark_uri(f"{staging_key(batch.pipeline, table)}/{file.path}") for file in files]
        target = storage.spark_uri(paths.table(batch.pipeline, table))
        (
            self._spark.read.parquet(*staged)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", step.app_id)
            .option("txnVersion", step.version)
            .option("userMetadata", commit_metadata(batch, step, "append"))
            .save(target)
        )


def commit_metadata(batch: PreparedBatch, step: Step, operation: str) -> str:
    """`userMetadata` of a batch's commit."""
    return user_metadata(
        pipeline=batch.pipeline,
        batch=batch.batch_id,
        operation=operation,
        generation=batch.generation,
        step=step.app_id,
        step_version=step.version,
    )


class TableSet:
    """All bronze tables of a pipeline, quarantine included: created, fenced and committed to together."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._spec = spec
        self.writer_by_table = {table.name: table.writer for table in spec.tables} | {"quarantine": "fan_out"}
        self.handles: dict[str, DeltaTable] = {}

    def open(self) -> None:
        """Open every table, creating those that are missing and adding columns newly declared.

        Raises:
            ContractError: TABLE_SCHEMA_DIFFERS when a column on disk has another type than declared.
        """
        declared = {table.name: (arrow_schema(table.column_types()), table.partition_by) for table in self._spec.tables}
        declared["quarantine"] = (QUARANTINE_SCHEMA, QUARANTINE_PARTITION)
        created = user_metadata(pipeline=self._spec.pipeline, batch="none", operation="create_table")

        def one(name: str) -> tuple[str, DeltaTable]:
            schema, partition_by = declared[name]
            key = paths.table(self._spec.pipeline, name)
            # A Lake of its own for each thread: handles are not shared.
            handle = Lake(self._lake.storage).ensure(key, schema, user_metadata=created, partition_by=partition_by)
            _check_schema(handle, schema, name, created)
            return name, handle

        with ThreadPoolExecutor(COMMIT_THREADS) as pool:
            self.handles = dict(pool.map(one, declared))

    def fence(self, owner: Step) -> None:
        """Raise the owner epoch in every table delta-rs commits to, so that a former owner's commits fail. Idempotent.

        A table that Spark commits to may have features delta-rs cannot commit with: there the writer looks.
        """
        metadata = user_metadata(
            pipeline=self._spec.pipeline,
            batch="none",
            operation="raise_owner",
            step=owner.app_id,
            step_version=owner.version,
        )
        fenced = [handle for name, handle in self.handles.items() if self.writer_by_table[name] == "fan_out"]
        with ThreadPoolExecutor(COMMIT_THREADS) as pool:
            list(pool.map(lambda handle: raise_owner(handle, owner, user_metadata=metadata), fenced))

    def commit(
        self,
        batch: PreparedBatch,
        writers: dict[str, TableWriter],
        *,
        owner: Step,
        after_each: Callable[[StepOutcome], None] | None = None,
    ) -> list[StepOutcome]:
        """Commit every share of the batch, tables in parallel; raises the first failure after all have been tried."""

        def one(share: PreparedTable) -> StepOutcome:
            outcome = writers[share.writer].commit(batch, share, owner=owner)
            if after_each is not None:
                after_each(outcome)
            return outcome

        with ThreadPoolExecutor(COMMIT_THREADS) as pool:
            return list(pool.map(one, batch.tables))


def _check_schema(handle: DeltaTable, declared: pa.Schema, name: str, user_metadata_text: str) -> None:
    from deltalake import Field, Schema

    on_disk = {field.name: field for field in handle.schema().fields}
    wanted = {field.name: field for field in Schema.from_arrow(declared).fields}
    different = [
        f"{column} is {on_disk[column].type} on disk and {field.type} in pipeline.yaml"
        for column, field in wanted.items()
        if column in on_disk and on_disk[column].type != field.type
    ]
    if different:
        raise ContractError(
            "TABLE_SCHEMA_DIFFERS",
            f"Table {name!r}: {'; '.join(different)}.",
            hint="Declare the type the table has, or give the column a new name.",
        )
    missing = [
        Field(field.name, field.type, nullable=True) for column, field in wanted.items() if column not in on_disk
    ]
    if missing:
        handle.alter.add_columns(missing, commit_properties=CommitProperties({"userMetadata": user_metadata_text}))
        refresh(handle)
