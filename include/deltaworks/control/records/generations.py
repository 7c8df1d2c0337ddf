"""Maps batch numbers of Spark's checkpoints to a pipeline's batch ids, and records start-overs and rollbacks.

Spark numbers batches from 0 in every new checkpoint, but Delta transaction ids must increase. So each checkpoint is
recorded with its first batch id and the source offset it starts at. A lost checkpoint is replaced by a new one that
continues after the last batch of the ledger. The `generation` increases only when a pipeline starts over.

A start-over or rollback is recorded before anything changes. The record fixes all actions, so a restart after a crash
does the same. Until a start-over is complete, no stream, replay or reprocess of the pipeline starts.

A restore does not revert transactions: the table's log still contains every later batch, so the log cannot tell which
rows are missing. The record of the rollback does, and takes precedence. The rows that return are part of the restore's
commit, under a transaction of the rollback. Rollbacks of a pipeline have ordinals without gaps; the next one begins
after the last is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore, UnversionedRecord
from deltaworks.errors import ConcurrencyError, ContractError, TransientError

# Start-overs.

_START_OVER_KIND = RecordKind(
    noun="record of a start over",
    unreadable_condition="START_OVER_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class TableLoss(RecordPart):
    """One table before a start-over. Its rows stay readable by time travel to `version`.

    A rollback restores the table to `restore_to`; with None the table is recreated empty. The content of `version` that
    is lost is counted by `rows`, `files` and `bytes`.
    """

    table: str
    version: int
    rows: int
    files: int
    bytes: int
    restore_to: int | None = None


class StartOver(Record):
    """A start-over. Batches of the new generation are numbered from `first_batch` on, after all earlier ones.

    `to_batch` is the last batch that a rollback keeps; None if all are given up.
    """

    kind: ClassVar[RecordKind] = _START_OVER_KIND
    indent: ClassVar[int | None] = 1

    pipeline: str
    generation: int
    first_batch: int
    start: dict[str, Any] | None
    spec_fingerprint: str
    code_version: str
    tables: tuple[TableLoss, ...]
    by: str
    reason: str
    run: str
    at: str
    to_batch: int | None = None


class StartOverCompletion(UnversionedRecord):
    """The completion of a start-over; for a rollback with the version each table was restored as."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _START_OVER_KIND

    versions: dict[str, int] | None = None


class StartOvers:
    """The start-overs of one pipeline, one per generation. Generation 1 has none."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, StartOver)
        self._ends = RecordStore(objects, StartOverCompletion)

    def read(self, generation: int) -> StartOver | None:
        """Reads the start-over that begins this generation; None if there is none.

        Raises:
            ContractError: START_OVER_UNREADABLE.
        """
        return self._records.read(paths.start_over(self._pipeline, generation))

    def get_or_create(self, planned: StartOver) -> StartOver:
        """Creates the record unless it exists; returns the stored one.

        Raises:
            ContractError: START_OVER_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.start_over(self._pipeline, planned.generation), planned)

    def record_completion(self, start_over: StartOver, *, versions: Mapping[str, int] | None = None) -> None:
        """Records the completion, and the version each table was restored as. Idempotent."""
        key = paths.start_over_completion(self._pipeline, start_over.generation)
        self._ends.create(key, StartOverCompletion(versions=dict(versions or {})))

    def rollback_versions(self, table: str) -> list[int]:
        """Returns the versions to which pipeline rollbacks restored a table. Rows of later versions are written
        again."""
        generations = range(2, self.newest()[0] + 1)
        ends = (self._ends.read(paths.start_over_completion(self._pipeline, generation)) for generation in generations)
        return [end.versions[table] for end in ends if end is not None and end.versions and table in end.versions]

    def last_surviving_batch(self, generation: int, *, current: int) -> int | None:
        """Returns the last batch of a generation whose rows the tables still have: -1 for none, None for the current
        generation.

        Args:
            current: the pipeline's current generation.
        """
        bounds = []
        for later_generation in range(generation + 1, current + 1):
            start_over = self.read(later_generation)
            bounds.append(-1 if start_over is None or start_over.to_batch is None else start_over.to_batch)
        return min(bounds, default=None)

    def newest(self) -> tuple[int, bool]:
        """Returns the highest generation with a start-over (1 if there is none), and whether it is complete."""
        folder = paths.start_over(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder) for key in self._objects.list(folder)}
        newest = max((int(name[1:7]) for name in names if name[1:7].isdigit()), default=1)
        end = paths.start_over_completion(self._pipeline, newest).removeprefix(folder)
        return newest, newest == 1 or end in names

    def reject_unfinished(self) -> None:
        """Raises if a start-over is incomplete. One listing.

        Raises:
            ContractError: START_OVER_UNFINISHED.
        """
        generation, ended = self.newest()
        if not ended:
            raise ContractError(
                "START_OVER_UNFINISHED",
                f"Pipeline {self._pipeline!r} was to start over in generation {generation}, and was interrupted.",
                hint=f"`deltaworks pipelines start-over {self._pipeline} --no-dry-run` continues with it.",
            )


# Batch numbers of checkpoints.


class CheckpointRecord(RecordPart):
    """One Spark checkpoint and the batch ids it is used for.

    The pipeline's batch id is `first_batch` plus Spark's batch number. Input after the source offset `start` is read. A
    `retired` checkpoint is not used again: the next start creates another one from the ledger.
    """

    model_config = ConfigDict(extra="ignore")

    ordinal: int
    first_batch: int
    start: dict[str, Any] | None
    retired: bool = False


class Generations(UnversionedRecord):
    """A pipeline's current generation and its checkpoints, oldest first."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of generations and checkpoints",
        unreadable_condition="GENERATIONS_UNREADABLE",
        hint="Restore it from the storage's versions, or remove it: it is recreated from the ledger.",
    )

    generation: int
    checkpoints: tuple[CheckpointRecord, ...]

    @property
    def current(self) -> CheckpointRecord:
        """The checkpoint in use."""
        return self.checkpoints[-1]

    @classmethod
    def first(cls) -> Generations:
        """Returns the record of a new pipeline."""
        return cls(generation=1, checkpoints=(CheckpointRecord(ordinal=1, first_batch=0, start=None),))

    @classmethod
    def from_start_over(cls, start_over: StartOver) -> Generations:
        """Returns the record of a generation that a start-over begins."""
        checkpoint = CheckpointRecord(ordinal=1, first_batch=start_over.first_batch, start=start_over.start)
        return cls(generation=start_over.generation, checkpoints=(checkpoint,))


class GenerationStore:
    """Reads and updates the generation record of one pipeline, which determines where its ingest query continues."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._key = paths.generations(pipeline)

    def read(self) -> Generations | None:
        """Reads the record, or None if there is none.

        Raises:
            ContractError: GENERATIONS_UNREADABLE.
        """
        return self._read()[0]

    def effective(self) -> Generations:
        """Returns the record or, if it is missing or lost, the initial value of the current generation."""
        return self.read() or self._initial_generations()

    def current(self) -> int:
        """Returns the current generation; 1 if none is recorded."""
        return self.effective().generation

    def begin_generation(self, start_over: StartOver) -> None:
        """Records a new generation, which the next start of the stream uses. Idempotent. Requires the pipeline's lease.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
        """
        recorded, etag = self._read()
        if recorded is None or recorded.generation < start_over.generation:
            self._write(Generations.from_start_over(start_over), etag)

    def current_checkpoint(self, *, last_completed: int | None, end_offset: dict[str, Any] | None) -> Generations:
        """Returns the checkpoint to run on: the recorded one, or a new one if that is lost or retired.

        A lost record is recreated with an unused checkpoint if the ledger has batches.

        Args:
            last_completed: the ledger's newest batch, None before the first.
            end_offset: the source offset at the end of that batch.

        Idempotent. Requires the pipeline's lease.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
            ContractError: LEDGER_WITHOUT_OFFSET if the start of a new checkpoint is unknown.
        """
        recorded, etag = self._read()
        if recorded is None:
            return self._write(self._recreate(last_completed, end_offset), etag)
        if not recorded.current.retired and not self._is_lost(recorded, last_completed):
            return recorded
        next_checkpoint = self._next_checkpoint(recorded.current, last_completed, end_offset)
        return self._write(recorded.replace(checkpoints=(*recorded.checkpoints, next_checkpoint)), etag)

    def retire_checkpoint(self) -> Generations:
        """Makes the next start replace the current checkpoint and continue from the ledger. Idempotent.

        Requires the pipeline's lease: a running stream would continue with its checkpoint.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
        """
        recorded, etag = self._read()
        recorded = recorded or Generations.first()
        checkpoints = (*recorded.checkpoints[:-1], recorded.current.replace(retired=True))
        return self._write(recorded.replace(checkpoints=checkpoints), etag)

    def end_offset(self, generations: Generations, spark_batch_id: int) -> dict[str, Any]:
        """Reads a batch's end offset of the single source from Spark's offset log.

        Raises:
            TransientError: OFFSET_LOG_UNREADABLE. Without it neither the end of this batch nor the start of the next is
                known.
        """
        folder = paths.checkpoint(self._pipeline, generations.generation, generations.current.ordinal)
        key = f"{folder}/offsets/{spark_batch_id}"
        stored = self._objects.get(key)
        try:
            offset = json.loads(stored.data.decode().splitlines()[2]) if stored else None
        except (ValueError, IndexError):
            offset = None
        if not isinstance(offset, dict):
            raise TransientError(
                "OFFSET_LOG_UNREADABLE",
                f"Spark's offset log does not say where batch {spark_batch_id} ends: {key} is "
                f"{'damaged' if stored else 'absent'}.",
            )
        return offset

    def _read(self) -> tuple[Generations | None, str | None]:
        """Reads the record and its ETag; None for both if there is none."""
        stored = self._objects.get(self._key)
        return (Generations.decode(stored.data, key=self._key), stored.etag) if stored else (None, None)

    def _write(self, record: Generations, etag: str | None) -> Generations:
        """Replaces the version `etag` of the object, or creates it if `etag` is None."""
        if etag is None:
            written = self._objects.put_if_absent(self._key, record.encode())
        else:
            written = self._objects.put_if_match(self._key, record.encode(), etag) is not None
        if not written:
            raise ConcurrencyError(
                "GENERATION_CONTENDED",
                f"Another process changed the checkpoint record of {self._pipeline!r} at the same time.",
            )
        return record

    def _initial_generations(self) -> Generations:
        """Returns the initial value of the newest generation whose start-over is complete."""
        start_overs = StartOvers(self._objects, self._pipeline)
        newest, ended = start_overs.newest()
        start_over = start_overs.read(newest if ended else newest - 1)
        return Generations.from_start_over(start_over) if start_over else Generations.first()

    def _recreate(self, last_completed: int | None, end_offset: dict[str, Any] | None) -> Generations:
        first = self._initial_generations()
        if last_completed is None:
            return first
        folder = paths.checkpoint(self._pipeline, first.generation, 1).rpartition("/")[0] + "/"
        used = [key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)]
        newest = max((int(name[1:]) for name in used if name[1:].isdigit()), default=0)
        last_used = first.current.replace(ordinal=max(newest, 1))
        return first.replace(checkpoints=(self._next_checkpoint(last_used, last_completed, end_offset),))

    def _next_checkpoint(
        self, previous: CheckpointRecord, last_completed: int | None, end_offset: dict[str, Any] | None
    ) -> CheckpointRecord:
        """Returns a new checkpoint that continues after the ledger's last batch.

        If the current checkpoint completed no batch, the new one starts at the same offset.
        """
        if last_completed is None or last_completed < previous.first_batch:
            return CheckpointRecord(
                ordinal=previous.ordinal + 1, first_batch=previous.first_batch, start=previous.start
            )
        if end_offset is None:
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger of {self._pipeline!r} has no end offset of batch {last_completed}, and its "
                "checkpoint is missing.",
            )
        return CheckpointRecord(ordinal=previous.ordinal + 1, first_batch=last_completed + 1, start=end_offset)

    def _is_lost(self, recorded: Generations, last_completed: int | None) -> bool:
        """Whether a checkpoint's folder has no metadata although the ledger has batches that were read with the
        checkpoint.
        """
        if last_completed is None or last_completed < recorded.current.first_batch:
            return False
        folder = paths.checkpoint(self._pipeline, recorded.generation, recorded.current.ordinal)
        return self._objects.get(f"{folder}/metadata") is None


# Rollbacks.

_ROLLBACK_KIND = RecordKind(
    noun="record of a rollback",
    unreadable_condition="ROLLBACK_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)
#: Rows committed after the restored version: re-commit their prepared files in the same commit, re-read their input
#: afterwards, or leave them out.
RowSource = Literal["prepared", "source", "none"]


class LostCommit(RecordPart):
    """Rows that one batch or replay added after the restored version."""

    kind: Literal["batch", "replay"]
    generation: int
    number: int
    rows: int
    files: int


class Rollback(Record):
    """A rollback of one table.

    Removed rows are still in `from_version` for time travel; `undone_changes` lists other reverted changes. Files of
    the restored version that are missing from the storage are `dropped_files`. With `reapply_erasures` the rollback is
    complete only after rows of erased people, which old files bring back, are deleted again.
    """

    kind: ClassVar[RecordKind] = _ROLLBACK_KIND
    indent: ClassVar[int | None] = 1

    pipeline: str
    ordinal: int
    table: str
    generation: int
    from_version: int
    to_version: int
    row_source: RowSource
    lost: tuple[LostCommit, ...]
    undone_changes: tuple[str, ...]
    dropped_files: tuple[str, ...]
    by: str
    reason: str
    run: str
    at: str
    code_version: str
    reapply_erasures: bool = False

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of the lost batches."""
        return tuple(share.number for share in self.lost if share.kind == "batch")


class StagedRows(Record):
    """Rows re-read for a rollback: files as `tables.files.WrittenFile` mappings, for its commit; `missing` are object
    keys whose rows are left out.
    """

    kind: ClassVar[RecordKind] = _ROLLBACK_KIND

    rows: int
    files: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class RollbackCompletion(UnversionedRecord):
    """The completion of a rollback: the table version it committed."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _ROLLBACK_KIND

    version: int


class Rollbacks:
    """The rollbacks of one pipeline, oldest first."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, Rollback)
        self._staged = RecordStore(objects, StagedRows)
        self._ends = RecordStore(objects, RollbackCompletion)

    def newest(self) -> int:
        """Returns the highest ordinal; 0 before the first. One listing."""
        return max(self._ordinals(), default=0)

    def read(self, ordinal: int) -> Rollback | None:
        """Reads one record; None if it does not exist.

        Raises:
            ContractError: ROLLBACK_UNREADABLE.
        """
        return self._records.read(paths.rollback(self._pipeline, ordinal))

    def unfinished(self) -> Rollback | None:
        """Returns the incomplete rollback; only the newest can be."""
        newest = self.newest()
        if not newest or self.completion(newest) is not None:
            return None
        return self.read(newest)

    def table_rollbacks(self, table: str) -> list[tuple[Rollback, RollbackCompletion | None]]:
        """Returns every rollback of a table with its completion, None if incomplete."""
        records = ((ordinal, self.read(ordinal)) for ordinal in self._ordinals())
        return [
            (record, self.completion(ordinal))
            for ordinal, record in records
            if record is not None and record.table == table
        ]

    def get_or_create(self, planned: Rollback) -> Rollback:
        """Creates the record unless it exists; returns the stored one.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.rollback(self._pipeline, planned.ordinal), planned)

    def staged(self, ordinal: int) -> StagedRows | None:
        """Reads the re-read rows of a rollback; None if there are none yet."""
        return self._staged.read(paths.rollback_files(self._pipeline, ordinal))

    def get_or_create_staged(self, ordinal: int, staged: StagedRows) -> StagedRows:
        """Creates the record of re-read rows unless it exists; returns the stored one.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._staged.get_or_create(paths.rollback_files(self._pipeline, ordinal), staged)

    def completion(self, ordinal: int) -> RollbackCompletion | None:
        """Reads the completion of a rollback; None if it is not complete."""
        return self._ends.read(paths.rollback_completion(self._pipeline, ordinal))

    def record_completion(self, rollback: Rollback, *, version: int) -> None:
        """Records the completion and the committed version. Idempotent."""
        self._ends.create(
            paths.rollback_completion(self._pipeline, rollback.ordinal), RollbackCompletion(version=version)
        )

    def reject_unfinished(self) -> None:
        """Raises if a rollback is incomplete. One listing.

        Raises:
            ContractError: ROLLBACK_UNFINISHED.
        """
        unfinished = self.unfinished()
        if unfinished is not None:
            raise ContractError(
                "ROLLBACK_UNFINISHED",
                f"A rollback of {self._pipeline}.{unfinished.table} was interrupted.",
                hint=f"`deltaworks restore {self._pipeline} {unfinished.table} --no-dry-run` continues with it.",
            )

    def _ordinals(self) -> list[int]:
        folder = paths.rollback(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder).partition(".")[0] for key in self._objects.list(folder)}
        return sorted(int(name) for name in names if name.isdigit())
