"""Maps the batch numbers of Spark's checkpoints to the batch ids of a pipeline.

Spark numbers batches from 0 in every new checkpoint, but Delta transaction ids must increase. So each checkpoint is
recorded with its first batch id and the source offset it starts at. A lost checkpoint is replaced by a new one that
continues after the last batch of the ledger. The `generation` increases only when a pipeline starts over.
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
