"""Which Spark checkpoint a pipeline's ingest query uses, and how Spark's batch numbers map to ours.

Spark numbers batches from 0 in every new checkpoint; transaction ids must only grow. So each checkpoint is recorded
with the first of *our* batch ids it stands for and the source offset it starts at. A lost checkpoint is followed by a
new one that continues after the last batch of the ledger; `generation` grows only when a pipeline starts over.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.start_over import StartOver, StartOvers
from deltaworks.control.records.store import RecordKind, RecordPart, UnversionedRecord
from deltaworks.errors import ConcurrencyError, ContractError, TransientError


class CheckpointRecord(RecordPart):
    """One checkpoint: our batch id is `first_batch` plus Spark's; `start` is the source offset it begins after.

    A `retired` one is not used again: the next start continues from the ledger with another.
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
        """What a new pipeline starts with."""
        return cls(generation=1, checkpoints=(CheckpointRecord(ordinal=1, first_batch=0, start=None),))

    @classmethod
    def from_start_over(cls, start_over: StartOver) -> Generations:
        """What a pipeline that starts over continues with."""
        checkpoint = CheckpointRecord(ordinal=1, first_batch=start_over.first_batch, start=start_over.start)
        return cls(generation=start_over.generation, checkpoints=(checkpoint,))


class GenerationStore:
    """The record of generations of one pipeline: the one object that says where its ingest query continues."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._key = paths.generations(pipeline)

    def read(self) -> Generations | None:
        """The record as it is, None where there is none.

        Raises:
            ContractError: GENERATIONS_UNREADABLE.
        """
        return self._read()[0]

    def effective(self) -> Generations:
        """The record; where there is none, or it was lost, what the pipeline's present generation began with."""
        return self.read() or self._initial_generations()

    def current(self) -> int:
        """The pipeline's generation; the first where nothing is recorded yet."""
        return self.effective().generation

    def begin_generation(self, start_over: StartOver) -> None:
        """Have the next start begin the new generation. Idempotent. Call it while holding the pipeline's lease.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
        """
        before, etag = self._read()
        if before is None or before.generation < start_over.generation:
            self._write(Generations.from_start_over(start_over), etag)

    def current_checkpoint(self, *, last_completed: int | None, end_offset: dict[str, Any] | None) -> Generations:
        """The checkpoint to run on: the one recorded, or a new one where that was lost or retired.

        A record that was lost while the ledger has batches is recreated, with a checkpoint that was never used.

        Args:
            last_completed: the ledger's newest batch, None before the first.
            end_offset: the source offset that batch ended at.

        Idempotent. Call it while holding the pipeline's lease.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
            ContractError: LEDGER_WITHOUT_OFFSET when a new checkpoint is needed and nobody knows where it starts.
        """
        recorded, etag = self._read()
        if recorded is None:
            return self._write(self._recreate(last_completed, end_offset), etag)
        if not recorded.current.retired and not self._is_lost(recorded, last_completed):
            return recorded
        following = self._next_checkpoint(recorded.current, last_completed, end_offset)
        return self._write(recorded.replace(checkpoints=(*recorded.checkpoints, following)), etag)

    def retire_checkpoint(self) -> Generations:
        """Have the next start leave the current checkpoint and continue from the ledger. Idempotent.

        Call it while holding the pipeline's lease: a stream that runs would continue with what it has.

        Raises:
            ConcurrencyError: GENERATION_CONTENDED.
        """
        recorded, etag = self._read()
        recorded = recorded or Generations.first()
        checkpoints = (*recorded.checkpoints[:-1], recorded.current.replace(retired=True))
        return self._write(recorded.replace(checkpoints=checkpoints), etag)

    def end_offset(self, generations: Generations, spark_batch_id: int) -> dict[str, Any]:
        """A batch's end offset of the one source, from Spark's own offset log.

        Raises:
            TransientError: OFFSET_LOG_UNREADABLE. Without it a batch would not know where it ends, and so the next one
                not where it starts.
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
                hint="Nothing was committed. If it comes again: `deltaworks checkpoint repair` shows what is damaged.",
            )
        return offset

    def _read(self) -> tuple[Generations | None, str | None]:
        """The record and the tag of its object; None for both where there is none."""
        stored = self._objects.get(self._key)
        return (Generations.decode(stored.data, key=self._key), stored.etag) if stored else (None, None)

    def _write(self, record: Generations, etag: str | None) -> Generations:
        """Replace the version `etag` of the object, or create it for None."""
        if etag is None:
            written = self._objects.put_if_absent(self._key, record.encode())
        else:
            written = self._objects.put_if_match(self._key, record.encode(), etag) is not None
        if not written:
            raise ConcurrencyError(
                "GENERATION_CONTENDED",
                f"Another process changed the checkpoint record of {self._pipeline!r} at the same time.",
                hint="Run one stream per pipeline; this one can simply be started again.",
            )
        return record

    def _initial_generations(self) -> Generations:
        """What the newest generation that was begun for good began with."""
        start_overs = StartOvers(self._objects, self._pipeline)
        newest, ended = start_overs.newest()
        begun = start_overs.read(newest if ended else newest - 1)
        return Generations.from_start_over(begun) if begun else Generations.first()

    def _recreate(self, last_completed: int | None, end_offset: dict[str, Any] | None) -> Generations:
        first = self._initial_generations()
        if last_completed is None:
            return first
        folder = paths.checkpoint(self._pipeline, first.generation, 1).rpartition("/")[0] + "/"
        used = [key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)]
        newest = max((int(name[1:]) for name in used if name[1:].isdigit()), default=0)
        before = first.current.replace(ordinal=max(newest, 1))
        return first.replace(checkpoints=(self._next_checkpoint(before, last_completed, end_offset),))

    def _next_checkpoint(
        self, before: CheckpointRecord, last_completed: int | None, end_offset: dict[str, Any] | None
    ) -> CheckpointRecord:
        """The checkpoint that follows: after the ledger's last batch, or where one that completed none began."""
        if last_completed is None or last_completed < before.first_batch:
            return CheckpointRecord(ordinal=before.ordinal + 1, first_batch=before.first_batch, start=before.start)
        if end_offset is None:
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger of {self._pipeline!r} does not say where batch {last_completed} ended, and its checkpoint "
                "is gone.",
                hint="Restore the checkpoint's folder, or the row of that batch in checkpoint_store.",
            )
        return CheckpointRecord(ordinal=before.ordinal + 1, first_batch=last_completed + 1, start=end_offset)

    def _is_lost(self, recorded: Generations, last_completed: int | None) -> bool:
        """A checkpoint is lost when the ledger has batches of it and its folder has no metadata any more."""
        if last_completed is None or last_completed < recorded.current.first_batch:
            return False
        folder = paths.checkpoint(self._pipeline, recorded.generation, recorded.current.ordinal)
        return self._objects.get(f"{folder}/metadata") is None
