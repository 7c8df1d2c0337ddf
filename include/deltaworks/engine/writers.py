"""Writes table files in Spark tasks, and commits a prepared batch of them through delta-rs or, if needed, Spark.

Both ways commit exactly the files of the prepared batch, under the batch's application transaction. A repeated commit
therefore changes nothing.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import StepOutcome
from deltaworks.errors import ContractError, TransientError
from deltaworks.events.evolution import add_columns
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import Step, check_owner_epoch, commit_step, refresh, transaction_version
from deltaworks.tables.files import WrittenFile, data_file_path, encode_parquet, split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.statistics import DEFAULT_COLUMNS, IndexedColumns
from deltaworks.tables.steps import batch_step
from deltaworks.tables.variant import read_with_variants, variant_columns

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
            return read_with_variants(self._spark, staged, self._variants(prepared_table.table))
        by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
        for file in files:
            address = storage.spark_uri(f"{paths.table(pipeline, prepared_table.table)}/{file.path}")
            by_partition.setdefault(tuple(file.partition.items()), []).append(address)
        frames = [
            self._with_partition(prepared_table.table, dict(values), addresses)
            for values, addresses in by_partition.items()
        ]
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)

    def _variants(self, table: str) -> frozenset[str]:
        return variant_columns(self._tables[table].schema())

    def _with_partition(self, table: str, values: dict[str, str | None], addresses: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        types = {field.name: str(json.loads(field.to_json())["type"]) for field in self._tables[table].schema().fields}
        frame = read_with_variants(self._spark, addresses, self._variants(table))
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


#: Maximum Arrow bytes that a task buffers for all tables together.
FLUSH_BYTES = 256 << 20
#: Arrow bytes of one table at which its buffer is written. The file has a tenth to a third of that size.
FILE_BYTES = 128 << 20
WRITE_THREADS = 4


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a task writes: pyarrow options of the storage, and the folder of each table.

    Attributes:
        arrow_options: contain credentials; sent to tasks in Spark's serialized closure and never printed.
        indexed: statistics columns of the tables that do not use Delta's default.
    """

    arrow_options: dict[str, Any] | None
    roots: dict[str, str]
    partition_by: dict[str, tuple[str, ...]]
    indexed: dict[str, IndexedColumns] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        storage: StorageSpec,
        folders: Mapping[str, str],
        *,
        partition_by: Mapping[str, tuple[str, ...]],
        indexed: Mapping[str, IndexedColumns] | None = None,
    ) -> FileTarget:
        """Creates a target for these folders, by table name, of a storage."""
        options = None if storage.scheme == "file" else storage.arrow_options()
        roots = {name: arrow_path(storage, folder) for name, folder in folders.items()}
        return cls(options, roots, dict(partition_by), dict(indexed or {}))

    def filesystem(self) -> fs.FileSystem:
        """Returns the storage's pyarrow filesystem; the local one if there are no `arrow_options`."""
        return fs.LocalFileSystem() if self.arrow_options is None else fs.S3FileSystem(**self.arrow_options)


def check_writable(target: FileTarget, table: str, rows: pa.Table) -> None:
    """Encodes rows as Parquet without writing them.

    Raises:
        Exception: the error that writing these rows would raise.
    """
    for values, part in split_by_partition(rows, target.partition_by[table]):
        data_file_path(values)
        encode_parquet(part.drop_columns(list(values)), target.indexed.get(table, DEFAULT_COLUMNS))


class TableWriters:
    """Buffers rows by table and writes them as files. Not thread-safe.

    A table with `file_bytes` in its buffer is written immediately. When all buffers together reach `flush_bytes`, the
    largest ones are written until half of that remains. So many small tables keep their buffers next to one large
    table.
    """

    def __init__(self, target: FileTarget, *, flush_bytes: int = FLUSH_BYTES, file_bytes: int = FILE_BYTES) -> None:
        self._target = target
        self._filesystem = target.filesystem()
        self._flush_bytes = flush_bytes
        self._file_bytes = file_bytes
        self._buffers: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self.buffered_bytes = 0
        self.files: list[tuple[str, WrittenFile]] = []

    def add(self, table: str, rows: pa.Table) -> None:
        """Buffers rows and writes tables that exceed a limit."""
        self._buffers.setdefault(table, []).append(rows)
        self._bytes[table] = self._bytes.get(table, 0) + rows.nbytes
        self.buffered_bytes += rows.nbytes
        if self._bytes[table] >= self._file_bytes:
            self._flush([table])
        if self.buffered_bytes >= self._flush_bytes:
            self._flush(self._largest())

    def _largest(self) -> list[str]:
        """Returns the tables with the largest buffers, so that writing them leaves at most half of `flush_bytes`."""
        tables, remaining_bytes = [], self.buffered_bytes
        for table in sorted(self._bytes, key=lambda name: -self._bytes[name]):
            if remaining_bytes <= self._flush_bytes // 2:
                break
            tables.append(table)
            remaining_bytes -= self._bytes[table]
        return tables

    def flush(self) -> None:
        """Writes all buffered rows."""
        self._flush(list(self._buffers))

    def _flush(self, tables: Sequence[str]) -> None:
        """Writes the buffers of these tables, several files in parallel, in chunks that bound the memory for
        partitioned rows.
        """
        with ThreadPoolExecutor(WRITE_THREADS) as pool:
            work = (
                (table, values, part)
                for table in tables
                for values, part in split_by_partition(
                    pa.concat_tables(self._pop_buffer(table)), self._partition_by(table)
                )
            )
            while chunk := list(itertools.islice(work, 4 * WRITE_THREADS)):
                self.files.extend(pool.map(self._write, chunk))

    def _partition_by(self, table: str) -> tuple[str, ...]:
        return self._target.partition_by[table]

    def _pop_buffer(self, table: str) -> list[pa.Table]:
        self.buffered_bytes -= self._bytes.pop(table)
        return self._buffers.pop(table)

    def _write(self, work: tuple[str, dict[str, str | None], pa.Table]) -> tuple[str, WrittenFile]:
        table, values, rows = work
        indexed = self._target.indexed.get(table, DEFAULT_COLUMNS)
        written = write_file(self._filesystem, self._target.roots[table], rows, partition=values, indexed=indexed)
        return table, written
