"""History of a pipeline's batches, from the ledger, prepared batches, tables and the file event log.

Read-only; needs neither a JVM nor a lease, and is safe during a running stream. A batch is listed from the moment it is
prepared; until it is complete, its tables' logs show which steps are committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow.dataset as ds
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import StepOutcome
from deltaworks.errors import ConfigError
from deltaworks.sources.objects.file_event_log import FileEventLog, filter_events
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.lake import Lake, rows_of
from deltaworks.tables.steps import (
    BATCH_METADATA_STORE,
    CHECKPOINT_STORE,
    batch_step,
    held_commit_steps,
    last_completed,
)

State = Literal["complete", "prepared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """Summary of one batch: rows, offsets, state, times.

    The batch has the rows after `start_offset`, up to and including `end_offset`. Tables in `held` have not committed
    it.
    """

    generation: int
    batch_id: int
    state: State
    held: tuple[str, ...]
    rows: int
    quarantined: int
    start_offset: Mapping[str, Any] | None
    end_offset: Mapping[str, Any] | None
    run: str
    owner_epoch: int
    prepared_at: datetime | None
    completed_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """Seconds from preparing to completing the batch; None while it is not complete."""
        if self.prepared_at is None or self.completed_at is None:
            return None
        return (self.completed_at - self.prepared_at).total_seconds()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An object that a batch read: sequence number of its file event, key, and size in bytes."""

    seq: int
    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDetail:
    """Everything recorded about one batch: offsets, spec version, one outcome per table, and the objects it read.

    While the batch is not complete, a table's outcome is `landed` (committed) or `pending`.
    """

    summary: BatchSummary
    spark_batch_id: int
    checkpoint: int
    source: Mapping[str, Any]
    spec_fingerprint: str
    code_version: str
    steps: tuple[StepOutcome, ...]
    files: tuple[SourceFile, ...]


class BatchHistory:
    """Reads the history of one pipeline's batches, over all generations. Used by one thread.

    A start-over begins a new generation, which continues the batch numbers.
    """

    def __init__(self, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._lake = lake
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec
        self._generation = self._home.generations.current()
        self._stores: dict[str, DeltaTable | None] = {
            name: lake.open(paths.pipeline_control(spec.pipeline, name))
            for name in (CHECKPOINT_STORE, BATCH_METADATA_STORE)
        }

    def last_completed(self) -> int | None:
        """Returns the number of the newest complete batch; None before the first."""
        return last_completed(self._stores[CHECKPOINT_STORE], self._spec.pipeline, self._generation)

    def recent(self, last: int = 20) -> list[BatchSummary]:
        """Returns the newest `last` batches of all generations, oldest first, including the prepared batch if there is
        one.
        """
        newest = self._newest_batch()
        return self._summarize_range(max(0, newest - last + 1), newest, all_generations=True)

    def completed(self, first: int = 0, last: int | None = None) -> list[BatchSummary]:
        """Returns the complete batches whose rows are in the tables, from `first` to `last` inclusive, oldest first."""
        newest = self.last_completed()
        if newest is None:
            return []
        return self._summarize_range(first, newest if last is None else min(last, newest))

    def source_metadata(self, first: int = 0, last: int | None = None) -> dict[int, Mapping[str, Any]]:
        """Returns the source metadata of complete batches, by batch: records, bytes, arrival times."""
        newest = self.last_completed()
        if newest is None:
            return {}
        rows = self._rows(CHECKPOINT_STORE, first, newest if last is None else min(last, newest))
        return {row["batch_id"]: json.loads(row["source_metadata"] or "{}") for row in rows}

    def detail(self, batch_id: int) -> BatchDetail:
        """Returns everything recorded about one batch.

        Raises:
            ConfigError: BATCH_UNKNOWN, there is no such batch.
        """
        rows = self._rows(CHECKPOINT_STORE, batch_id, batch_id, all_generations=True)
        prepared = self._home.prepared.read(self._generation, batch_id)
        if rows:
            return self._ledger_detail(rows[0])
        if prepared is None:
            raise ConfigError(
                "BATCH_UNKNOWN",
                f"Pipeline {self._spec.pipeline!r} has no batch {batch_id} in generation {self._generation}.",
                hint=f"Its newest batch is {self._newest_batch()}."
                if self._newest_batch() >= 0
                else "It has no batch yet.",
            )
        return self._prepared_detail(prepared)

    def _newest_batch(self) -> int:
        """Returns the number of the newest recorded batch; -1 before the first."""
        completed = self.last_completed()
        newest = -1 if completed is None else completed
        while self._home.prepared.read(self._generation, newest + 1) is not None:
            newest += 1
        return newest

    def _summarize_range(self, first: int, last: int, *, all_generations: bool = False) -> list[BatchSummary]:
        rows = {
            row["batch_id"]: row for row in self._rows(CHECKPOINT_STORE, first, last, all_generations=all_generations)
        }
        held = held_tables_by_batch(self._rows(BATCH_METADATA_STORE, first, last, all_generations=all_generations))
        summaries = []
        for batch_id in range(first, last + 1):
            if batch_id in rows:
                summaries.append(_completed_summary(rows[batch_id], held.get(batch_id, ())))
                continue
            prepared = self._home.prepared.read(self._generation, batch_id)
            if prepared is not None:
                summaries.append(_prepared_summary(prepared))
        return summaries

    def _rows(self, name: str, first: int, last: int, *, all_generations: bool = False) -> list[dict[str, Any]]:
        store = self._stores[name]
        if store is None:
            return []
        condition = (ds.field("batch_id") >= first) & (ds.field("batch_id") <= last)
        if not all_generations:
            condition &= self._surviving_batches_filter()
        rows: list[dict[str, Any]] = rows_of(self._lake, store, filters=condition).to_pylist()
        return sorted(rows, key=lambda row: row["batch_id"])

    def _surviving_batches_filter(self) -> Any:
        """Returns the filter for batches whose rows still exist: those of this generation, and earlier ones kept by a
        rollback.
        """
        condition = ds.field("generation") == self._generation
        for generation in range(1, self._generation):
            last = self._home.start_overs.last_surviving_batch(generation, current=self._generation)
            if last is not None and last >= 0:
                condition |= (ds.field("generation") == generation) & (ds.field("batch_id") <= last)
        return condition

    def _ledger_detail(self, row: Mapping[str, Any]) -> BatchDetail:
        batch_id = row["batch_id"]
        rows = self._rows(BATCH_METADATA_STORE, batch_id, batch_id, all_generations=True)
        ordered = sorted(rows, key=lambda step: (step["table_name"], step["at"]))
        source = json.loads(row["source_metadata"] or "{}")
        return BatchDetail(
            summary=_completed_summary(row, held_tables_by_batch(rows).get(batch_id, ())),
            spark_batch_id=row["spark_batch_id"],
            checkpoint=row["checkpoint"],
            source=source,
            spec_fingerprint=row["spec_fingerprint"],
            code_version=row["code_version"],
            steps=tuple(StepOutcome(**{name: step[name] for name in StepOutcome.__slots__}) for step in ordered),
            # The pipeline's source may have been different in another generation.
            files=self._files(source) if row["generation"] == self._generation else (),
        )

    def _prepared_detail(self, prepared: PreparedBatch) -> BatchDetail:
        return BatchDetail(
            summary=_prepared_summary(prepared),
            spark_batch_id=prepared.spark_batch_id,
            checkpoint=prepared.checkpoint,
            source=prepared.source,
            spec_fingerprint=prepared.spec_fingerprint,
            code_version=prepared.code_version,
            steps=tuple(self._pending_step(prepared, share) for share in prepared.tables),
            files=self._files(prepared.source),
        )

    def _pending_step(self, prepared: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
        app_id = batch_step(prepared.pipeline, prepared.generation, prepared_table.table, prepared.batch_id).app_id
        table = self._lake.open(paths.table(prepared.pipeline, prepared_table.table))
        committed_batch = table.transaction_version(app_id) if table is not None else None
        return StepOutcome(
            step=app_id,
            table_name=prepared_table.table,
            writer=prepared_table.writer,
            outcome="landed" if committed_batch is not None and committed_batch >= prepared.batch_id else "pending",
            rows=prepared_table.rows,
            files=len(prepared_table.files),
            bytes=sum(file["size"] for file in prepared_table.files),
            delta_version=None,
            seconds=None,
        )

    def _files(self, source: Mapping[str, Any]) -> tuple[SourceFile, ...]:
        """Returns the objects that the batch read, from the file event log; empty for streams and other sources."""
        declared = self._spec.source
        if "first_seq" not in source or not isinstance(declared, FileSourceSpec):
            return ()
        events = FileEventLog(self._lake, declared.relay).read(source["first_seq"] - 1, source["last_seq"])
        matching_events = filter_events(events, bucket=declared.bucket, prefix=declared.prefix, glob=declared.glob)
        return tuple(SourceFile(row["seq"], row["key"], row["size"]) for row in matching_events.to_pylist())


def held_tables_by_batch(steps: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, ...]]:
    """Returns, by batch, the tables that were held during the batch and have not caught up. `steps` are ledger rows."""
    held: dict[int, tuple[str, ...]] = {}
    for table, batch_id in held_commit_steps(steps):
        held[batch_id] = (*held.get(batch_id, ()), table)
    return held


def _completed_summary(row: Mapping[str, Any], held: tuple[str, ...]) -> BatchSummary:
    return BatchSummary(
        generation=row["generation"],
        batch_id=row["batch_id"],
        state="complete",
        held=held,
        rows=row["rows"],
        quarantined=row["quarantined"],
        start_offset=json.loads(row["start_offset"] or "null"),
        end_offset=json.loads(row["end_offset"] or "null"),
        run=row["run"],
        owner_epoch=row["owner_epoch"],
        prepared_at=row["prepared_at"],
        completed_at=row["completed_at"],
    )


def _prepared_summary(prepared: PreparedBatch) -> BatchSummary:
    return BatchSummary(
        generation=prepared.generation,
        batch_id=prepared.batch_id,
        state="prepared",
        held=(),
        rows=prepared.rows,
        quarantined=prepared.quarantined,
        start_offset=prepared.offsets.get("start"),
        end_offset=prepared.offsets.get("end"),
        run=prepared.run,
        owner_epoch=prepared.owner_epoch,
        prepared_at=parse_iso(prepared.prepared_at),
        completed_at=None,
    )
