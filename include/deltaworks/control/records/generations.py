"""Which Spark checkpoint a pipeline's ingest query uses, and how Spark's batch numbers map to ours.

Spark numbers batches from 0 in every new checkpoint; transaction ids must only grow. So each checkpoint is recorded
with the first of *our* batch ids it stands for and the source offset it starts at. A lost checkpoint is followed by a
new one that goes on after the last batch of the ledger; `generation` grows only when a pipeline starts over.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.start_over import StartOver, newest_start_over, read_start_over
from deltaworks.errors import ConcurrencyError, ContractError, TransientError


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint: our batch id is `first_batch` plus Spark's; `start` is the source offset it begins after.

    A `retired` one is not used again: the next start goes on from the ledger with another.
    """

    ordinal: int
    first_batch: int
    start: dict[str, Any] | None
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Generations:
    """A pipeline's current generation and its checkpoints, oldest first."""

    generation: int
    checkpoints: tuple[CheckpointRecord, ...]

    @property
    def current(self) -> CheckpointRecord:
        """The checkpoint in use."""
        return self.checkpoints[-1]

    @classmethod
    def first(cls) -> Generations:
        """What a new pipeline starts with."""
        return cls(1, (CheckpointRecord(1, 0, None),))

    @classmethod
    def begun_by(cls, begun: StartOver) -> Generations:
        """What a pipeline that starts over goes on with."""
        return cls(begun.generation, (CheckpointRecord(1, begun.first_batch, begun.start),))

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Generations:
        """Read the object.

        Raises:
            ContractError: GENERATIONS_UNREADABLE.
        """
        try:
            record = json.loads(data)
            names = CheckpointRecord.__slots__
            checkpoints = [{name: each[name] for name in names if name in each} for each in record["checkpoints"]]
            return cls(record["generation"], tuple(CheckpointRecord(**each) for each in checkpoints))
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(
                "GENERATIONS_UNREADABLE",
                f"{key} cannot be read: {error}.",
                hint="Restore it from the storage's versions, or remove it: it is made anew from the ledger.",
            ) from error


def read_generations(objects: ObjectStore, pipeline: str) -> Generations | None:
    """The record as it is, None where there is none."""
    key = paths.pipeline_control(pipeline, "generations.json")
    found = objects.get(key)
    return Generations.decode(found.data, key=key) if found else None


def known_generations(objects: ObjectStore, pipeline: str) -> Generations:
    """The record; where there is none, or it was lost, what the pipeline's present generation began with."""
    return read_generations(objects, pipeline) or _beginning(objects, pipeline)


def current_generation(objects: ObjectStore, pipeline: str) -> int:
    """The pipeline's generation; the first where nothing is recorded yet."""
    return known_generations(objects, pipeline).generation


def begin_generation(objects: ObjectStore, begun: StartOver) -> None:
    """Have the next start begin the new generation. Idempotent. Call it while holding the pipeline's lease."""
    key = paths.pipeline_control(begun.pipeline, "generations.json")
    found = objects.get(key)
    if found is not None and Generations.decode(found.data, key=key).generation >= begun.generation:
        return
    data = Generations.begun_by(begun).encode()
    etag = objects.put_if_match(key, data, found.etag) if found else None
    if etag is None and not (found is None and objects.put_if_absent(key, data)):
        raise _contended(begun.pipeline)


def _beginning(objects: ObjectStore, pipeline: str) -> Generations:
    """What the newest generation that was begun for good began with."""
    newest, ended = newest_start_over(objects, pipeline)
    begun = read_start_over(objects, pipeline, newest if ended else newest - 1)
    return Generations.begun_by(begun) if begun else Generations.first()


def current_checkpoint(
    objects: ObjectStore, pipeline: str, *, last_completed: int | None, end_offset: dict[str, Any] | None
) -> Generations:
    """The checkpoint to run on: the one recorded, or a new one where that was lost or retired.

    A record that was lost while the ledger has batches is made anew, with a checkpoint that was never used.

    Args:
        last_completed: the ledger's newest batch, None before the first.
        end_offset: the source offset that batch ended at.

    Idempotent. Call it while holding the pipeline's lease.

    Raises:
        ContractError: LEDGER_WITHOUT_OFFSET when a new checkpoint is needed and nobody knows where it starts.
    """
    key = paths.pipeline_control(pipeline, "generations.json")
    found = objects.get(key)
    if found is None:
        first = _first_of(objects, pipeline, last_completed, end_offset)
        if not objects.put_if_absent(key, first.encode()):
            raise _contended(pipeline)
        return first
    known = Generations.decode(found.data, key=key)
    if not known.current.retired and not _lost(objects, pipeline, known, last_completed):
        return known
    after = _after(pipeline, known.current, last_completed, end_offset)
    renewed = Generations(known.generation, (*known.checkpoints, after))
    if objects.put_if_match(key, renewed.encode(), found.etag) is None:
        raise _contended(pipeline)
    return renewed


def _after(
    pipeline: str, before: CheckpointRecord, last_completed: int | None, end_offset: dict[str, Any] | None
) -> CheckpointRecord:
    """The checkpoint that follows: after the ledger's last batch, or where one that completed none began."""
    if last_completed is None or last_completed < before.first_batch:
        return CheckpointRecord(before.ordinal + 1, before.first_batch, before.start)
    if end_offset is None:
        raise ContractError(
            "LEDGER_WITHOUT_OFFSET",
            f"The ledger of {pipeline!r} does not say where batch {last_completed} ended, and its checkpoint is gone.",
            hint="Restore the checkpoint's folder, or the row of that batch in checkpoint_store.",
        )
    return CheckpointRecord(before.ordinal + 1, last_completed + 1, end_offset)


def _first_of(
    objects: ObjectStore, pipeline: str, last_completed: int | None, end_offset: dict[str, Any] | None
) -> Generations:
    first = _beginning(objects, pipeline)
    if last_completed is None:
        return first
    folder = paths.checkpoint(pipeline, first.generation, 1).rpartition("/")[0] + "/"
    used = [key.removeprefix(folder).partition("/")[0] for key in objects.list(folder)]
    newest = max((int(name[1:]) for name in used if name[1:].isdigit()), default=0)
    before = replace(first.current, ordinal=max(newest, 1))
    return Generations(first.generation, (_after(pipeline, before, last_completed, end_offset),))


def retire_checkpoint(objects: ObjectStore, pipeline: str) -> Generations:
    """Have the next start leave the current checkpoint and go on from the ledger. Idempotent.

    Call it while holding the pipeline's lease: a stream that runs would go on with what it has.
    """
    key = paths.pipeline_control(pipeline, "generations.json")
    found = objects.get(key)
    known = Generations.decode(found.data, key=key) if found else Generations.first()
    retired = Generations(known.generation, (*known.checkpoints[:-1], replace(known.current, retired=True)))
    etag = objects.put_if_match(key, retired.encode(), found.etag) if found else None
    if etag is None and not (found is None and objects.put_if_absent(key, retired.encode())):
        raise _contended(pipeline)
    return retired


def _lost(objects: ObjectStore, pipeline: str, known: Generations, last_completed: int | None) -> bool:
    """A checkpoint is lost when the ledger has batches of it and its folder has no metadata any more."""
    if last_completed is None or last_completed < known.current.first_batch:
        return False
    folder = paths.checkpoint(pipeline, known.generation, known.current.ordinal)
    return objects.get(f"{folder}/metadata") is None


def _contended(pipeline: str) -> ConcurrencyError:
    return ConcurrencyError(
        "GENERATION_CONTENDED",
        f"Another process changed the checkpoint record of {pipeline!r} at the same time.",
        hint="Run one stream per pipeline; this one can simply be started again.",
    )


def read_end_offset(
    objects: ObjectStore, pipeline: str, generations: Generations, spark_batch_id: int
) -> dict[str, Any]:
    """A batch's end offset of the one source, from Spark's own offset log.

    Raises:
        TransientError: OFFSET_LOG_UNREADABLE. Without it a batch would not know where it ends, and so the next one
            not where it starts.
    """
    folder = paths.checkpoint(pipeline, generations.generation, generations.current.ordinal)
    key = f"{folder}/offsets/{spark_batch_id}"
    found = objects.get(key)
    try:
        offset = json.loads(found.data.decode().splitlines()[2]) if found else None
    except (ValueError, IndexError):
        offset = None
    if not isinstance(offset, dict):
        raise TransientError(
            "OFFSET_LOG_UNREADABLE",
            f"Spark's offset log does not say where batch {spark_batch_id} ends: {key} is "
            f"{'damaged' if found else 'absent'}.",
            hint="Nothing was committed. If it comes again: `deltaworks checkpoint repair` tells what is damaged.",
        )
    return offset
