"""Processes a batch in three phases: prepare, commit, complete.

- *prepare*: one Spark pass writes the data files. Then one object, the prepared batch, is created (put-if-absent); from
  then on the batch's content is fixed.
- *commit*: all tables in parallel, each guarded by its transaction id and the owner epoch.
- *complete*: the ledger rows are written.

After a crash a batch resumes at the first phase that has not completed. Its files are committed and not written again.
Held tables are skipped; they catch up later from the same prepared batches. Correctness does not depend on clocks,
identical replays or Airflow.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_run
from deltaworks.control.records.generations import Generations
from deltaworks.control.records.held_tables import HeldTable
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.commit import BatchStores, TableCommitter, commit_tables
from deltaworks.engine.duplicates import duplicate_windows
from deltaworks.engine.fan_out import FanOutResult, fan_out, partition_columns, write_with_new_columns
from deltaworks.engine.held_tables import TableHolds
from deltaworks.engine.keyed.catchup_threads import KeyedCatchUp, KeyedTables
from deltaworks.engine.progress import BatchReport, parse_counts
from deltaworks.engine.writers import FanOutWriter, FileTarget, SparkWriter, TableWriter, staging_key
from deltaworks.errors import TransientError
from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.evolution import EvolvedColumns, to_records
from deltaworks.events.parse import ParserInputs
from deltaworks.events.redaction_keys import export_to_vault
from deltaworks.sources.base import OffsetRange, OffsetRanges, Slice
from deltaworks.sources.worker_crashes import CrashIsolation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The lease owner and owner epoch under which a batch is committed."""

    owner: str
    step: Step


class BatchProcessor:
    """Processes batches of one pipeline, and serves table requests (write turns, resumes) between batches.

    Batches are processed by one thread. `serve_requests` may be called from another thread: it returns immediately
    while a batch runs, but a batch waits for it.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        spec: PipelineSpec,
        stores: BatchStores,
        *,
        generations: Generations,
        ownership: Ownership,
        predecessor_crashed: bool = False,
    ) -> None:
        """Opens the pipeline's held tables and keyed tables.

        Args:
            spark: None if only prepared batches are to be completed.
            predecessor_crashed: whether the previous run was killed. Then its batch is re-read with one payload per
                task.
        """
        self._spark = spark
        self._spec = spec
        self._lake = stores.lake
        self._home = PipelineHome(stores.objects, spec.pipeline)
        self._generations = generations
        self._offset_ranges = OffsetRanges(self._home)
        self._ledger = stores.ledger
        self._tables = stores.tables
        self._ownership = ownership
        handles = stores.tables.handles
        writers: dict[str, TableWriter] = {
            "fan_out": FanOutWriter(handles),
            "spark": SparkWriter(spark, stores.lake, handles),
        }
        self._commits = TableCommitter(stores.tables, writers, owner=ownership.step)
        self._last_completed = stores.ledger.last_completed()
        self._batch_lock = threading.Lock()
        self._isolate_next = predecessor_crashed
        keyed = KeyedTables(spark, stores.lake, spec, owner=ownership.step)
        self._holds = TableHolds(
            stores,
            self._home,
            keyed=keyed,
            generation=generations.generation,
            committer=self._commits,
            owner=ownership.step,
            on_caught_up=self._remove_staged,
        )
        self._holds.start(self._last_completed)
        self.keyed = KeyedCatchUp(keyed, is_held=self._holds.is_held)

    @property
    def held(self) -> list[HeldTable]:
        """The records of the held tables."""
        return self._holds.records()

    def serve_requests(self) -> bool:
        """Serves requests for write turns and resumes. Returns False without effect while a batch runs; the batch
        serves them.
        """
        if not self._batch_lock.acquire(blocking=False):
            return False
        try:
            self._holds.serve_requests(self._last_completed)
        finally:
            self._batch_lock.release()
        return True

    def use_checkpoint(self, generations: Generations) -> None:
        """Switches to another checkpoint; its Spark batch ids restart at 0."""
        self._generations = generations

    def batch_id(self, spark_batch_id: int) -> int:
        """Converts a Spark batch id, which counts from 0 in each checkpoint, to a Deltaworks batch id."""
        return self._generations.current.first_batch + spark_batch_id

    def offset_range(self, spark_batch_id: int) -> OffsetRange:
        """Returns the offset range of a Spark batch, from Spark's offset log.

        Raises:
            TransientError: OFFSET_LOG_UNREADABLE.
        """
        return self._offset_ranges.read(self._generations, spark_batch_id, read_end_offset=self._end_offset)

    def _end_offset(self, generations: Generations, spark_batch_id: int) -> dict[str, Any]:
        return self._home.generations.end_offset(generations, spark_batch_id)

    def process(
        self, source: Slice, spark_batch_id: int, *, on_job_start: Callable[[], None] = lambda: None
    ) -> BatchReport | None:
        """Processes one batch. Returns its report, or None if the ledger already has the batch.

        Args:
            on_job_start: called before each Spark job of a batch that runs in several jobs after a worker crash.

        Raises:
            FencedError: a successor has taken over; nothing was written.
            TransientError: CHECKPOINT_SUPERSEDED, the batch was prepared with another slice than Spark's current one;
                OFFSET_LOG_UNREADABLE, Spark's log does not contain the slice.
        """
        with self._batch_lock:
            return self._process(source, spark_batch_id, on_job_start)

    def _process(self, source: Slice, spark_batch_id: int, on_job_start: Callable[[], None]) -> BatchReport | None:
        batch_id = self.batch_id(spark_batch_id)
        start, end = self.offset_range(spark_batch_id)
        if self._last_completed is not None and batch_id <= self._last_completed:
            # Spark repeats its last batch if it crashed before recording it. Any other slice differs from the committed
            # one.
            if batch_id < self._last_completed or self._ledger.end_offset(batch_id) != end:
                self._retire_checkpoint(batch_id)
            return None
        self._holds.serve_requests(self._last_completed)
        started = time.monotonic()
        prepared = self._home.prepared.read(self._generations.generation, batch_id)
        resumed = prepared is not None
        if prepared is None:
            isolation = self._crash_isolation(batch_id, on_job_start)
            prepared = self._prepare(source, spark_batch_id, batch_id, (start, end), isolation)
            isolation.clear()
            self._isolate_next = False
        report = self._commit_and_complete(prepared, resumed=resumed, prepare_seconds=time.monotonic() - started)
        if prepared.checkpoint != self._generations.current.ordinal or prepared.offsets.get("end") != end:
            self._retire_checkpoint(batch_id)
        return report

    def _retire_checkpoint(self, batch_id: int) -> None:
        """Ends the run because Spark's slice of a batch differs from the slice that was committed.

        Either a former owner lost its checkpoint and prepared the batch with another slice, or checkpoint files were
        lost and Spark planned the batch again. Continuing would skip the rest of Spark's slice. The next checkpoint
        starts at the end offset in the ledger.
        """
        self._home.generations.retire_checkpoint()
        raise TransientError(
            "CHECKPOINT_SUPERSEDED",
            f"Batch {batch_id} of {self._spec.pipeline!r} was committed with another slice than checkpoint "
            f"{self._generations.current.ordinal} has for it.",
        )

    def complete_prepared(self) -> BatchReport | None:
        """Completes a batch that was prepared but not completed, if there is one. Call it before the query starts."""
        next_batch = 0 if self._last_completed is None else self._last_completed + 1
        prepared = self._home.prepared.read(self._generations.generation, next_batch)
        if prepared is None:
            return None
        return self._commit_and_complete(prepared, resumed=True, prepare_seconds=0.0)

    def _crash_isolation(self, batch_id: int, on_job_start: Callable[[], None]) -> CrashIsolation:
        return CrashIsolation(
            objects=self._home.objects,
            storage=self._lake.storage,
            folder=paths.batch_crashes(self._spec.pipeline, self._generations.generation, batch_id),
            max_crashes=self._spec.stream.crashes_per_object,
            payload_timeout_seconds=self._spec.stream.object_timeout_seconds,
            start_isolated=self._isolate_next,
            on_job_start=on_job_start,
        )

    def _prepare(
        self, source: Slice, spark_batch_id: int, batch_id: int, span: OffsetRange, isolation: CrashIsolation
    ) -> PreparedBatch:
        spec, (start, end) = self._spec, span
        stamp = BatchMetadata(batch_id, time.time_ns() // 1000, spec.fingerprint())
        written = self._write(source, stamp, isolation)
        return self._home.prepared.get_or_create(
            PreparedBatch(
                pipeline=spec.pipeline,
                generation=self._generations.generation,
                batch_id=batch_id,
                spark_batch_id=spark_batch_id,
                checkpoint=self._generations.current.ordinal,
                owner=self._ownership.owner,
                owner_epoch=self._ownership.step.version,
                run=current_run(),
                prepared_at=iso_now(),
                ingested_at_us=stamp.ingested_at_us,
                spec_fingerprint=stamp.fingerprint,
                code_version=__version__,
                offsets={"start": start or None, "end": end},
                suppression=written.facts.pop("suppression", 0),
                source=source.metadata | written.findings.ledger_entry() | written.facts,
                tables=tuple(self._prepared_table(name, written) for name in sorted(written.files)),
            )
        )

    def _write(self, source: Slice, stamp: BatchMetadata, isolation: CrashIsolation) -> FanOutResult:
        if source.is_empty():
            return FanOutResult()
        if self._spark is None:
            raise TransientError("SPARK_UNAVAILABLE", "Reading a batch needs Spark, which is not running here.")
        self._spark.sparkContext.setJobDescription(f"{self._spec.pipeline} batch {stamp.batch_id}: write files")
        spark = self._spark
        target = self._file_target()
        ingested_at = datetime.fromtimestamp(stamp.ingested_at_us / 1_000_000, tz=UTC)
        windows = duplicate_windows(self._spec, self._lake, self._tables, now=ingested_at)
        batch_name = f"g{self._generations.generation:06d}-{stamp.batch_id:012d}"
        # Pinned once for both passes, so that all rows of a batch use the same database versions.
        inputs = ParserInputs.pin(self._spec, self._lake.storage, seal_for_batch=batch_name)

        def run_pass(evolved: EvolvedColumns) -> FanOutResult:
            return fan_out(
                spark,
                source,
                spec=self._spec,
                stamp=stamp,
                target=target,
                evolved=evolved,
                inputs=inputs,
                duplicates=windows,
                isolation=isolation,
            )

        written = write_with_new_columns(run_pass, self._spec, self._tables.evolved())
        if inputs.redaction_keys is not None:
            written.facts["suppression"] = inputs.redaction_keys.suppression.number
            export_to_vault(self._spec, self._lake.storage, written.findings.sealed_frames, name=batch_name)
        written.facts |= {} if inputs.databases is None else {"databases": inputs.databases.ledger_entries()}
        return written

    def _file_target(self) -> FileTarget:
        folders, partition_by = {}, {}
        for name, columns in partition_columns(self._spec).items():
            staged = self._tables.writer_by_table[name] == "spark"
            folders[name] = (staging_key if staged else paths.table)(self._spec.pipeline, name)
            partition_by[name] = () if staged else columns
        indexed = self._tables.indexed_columns()
        return FileTarget.of(self._lake.storage, folders, partition_by=partition_by, indexed=indexed)

    def _prepared_table(self, name: str, written: FanOutResult) -> PreparedTable:
        files = written.files[name]
        return PreparedTable(
            table=name,
            writer=self._tables.writer_by_table[name],
            rows=sum(file.rows for file in files),
            files=tuple(asdict(file) for file in files),
            new_columns=to_records(written.new_columns.get(name, ())),
        )

    def _commit_and_complete(self, prepared: PreparedBatch, *, resumed: bool, prepare_seconds: float) -> BatchReport:
        owner = self._ownership.step
        started = time.monotonic()
        steps = commit_tables(
            prepared,
            self._commits,
            tables=self._tables,
            is_held=self._holds.is_held,
            suspend=self._holds.suspend,
        )
        commit_seconds = time.monotonic() - started
        self._ledger.complete(prepared, steps, owner=owner)
        self._last_completed = prepared.batch_id
        self.keyed.notify()
        for share in prepared.tables:
            if not self._holds.is_held(share.table):
                self._remove_staged(prepared, share)
        return BatchReport(
            batch_id=prepared.batch_id,
            rows=prepared.rows,
            quarantined=prepared.quarantined,
            files_read=int(prepared.source.get("files", 0)),
            bytes_read=int(prepared.source.get("bytes", 0)),
            files_written=sum(step.files for step in steps),
            tables=len(steps),
            resumed=resumed,
            prepare_seconds=prepare_seconds,
            commit_seconds=commit_seconds,
            complete_seconds=time.monotonic() - started - commit_seconds,
            rule_warnings=json.dumps(warnings) if (warnings := prepared.source.get("rule_warnings")) else None,
            table_rows={share.table: share.rows for share in prepared.tables},
            over_budget=json.dumps(exceeded) if (exceeded := prepared.source.get("over_budget")) else None,
            objects_missing=int(prepared.source.get("objects_rejected", {}).get("object_missing", 0)),
            ranges_lost=int(prepared.source.get("ranges_lost", 0)),
            missing_examples=tuple(prepared.source.get("objects_missing") or prepared.source.get("lost_examples", ())),
            # A batch whose objects could all not be opened has no count of events; each object counts as one.
            events=int(prepared.source.get("events", prepared.rows + prepared.quarantined)),
            quarantined_events=int(prepared.source.get("quarantined_events", prepared.quarantined)),
            rejected=parse_counts(prepared.source.get("rejected", ())),
            rejected_events=tuple(
                (code, name, path, int(events))
                for code, name, path, events in prepared.source.get("rejected_events", ())
            ),
            arrived_us=tuple(map(int, prepared.source.get("arrived_us", ()))),
        )

    def _remove_staged(self, prepared: PreparedBatch, prepared_table: PreparedTable) -> None:
        if prepared_table.writer != "spark":
            return
        for file in prepared_table.files:
            # After a failure the staged file is an orphan: it takes space until maintenance removes it.
            with contextlib.suppress(Exception):
                self._home.objects.delete(f"{staging_key(prepared.pipeline, prepared_table.table)}/{file['path']}")
