"""Which Spark checkpoint a pipeline's ingest query uses, and how Spark's batch numbers map to ours.

Spark numbers batches from 0 in every new checkpoint; transaction ids must only grow. So each checkpoint is recorded
with the first of *our* batch ids it stands for and the source offset it starts at. A lost checkpoint is followed by a
new one that goes on after the last batch of the ledger; `generation` grows only when a pipeline starts over.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint: our batch id is `first_batch` plus Spark's; `start` is the source offset it begins after."""

    ordinal: int
    first_batch: int
    start: dict[str, Any] | None


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

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def current_checkpoint(
    objects: ObjectStore, pipeline: str, *, last_completed: int | None, end_offset: dict[str, Any] | None
) -> Generations:
    """The checkpoint to run on: the one recorded, or a new one where that was lost.

    Args:
        last_completed: the ledger's newest batch, None before the first.
        end_offset: the source offset that batch ended at.

    Idempotent. Call it while holding the pipeline's lease.
    """
    key = paths.pipeline_control(pipeline, "generations.json")
    found = objects.get(key)
    if found is None:
        fresh = Generations.first()
        if not objects.put_if_absent(key, fresh.encode()):
            raise _contended(pipeline)
        return fresh
    record = json.loads(found.data)
    known = Generations(record["generation"], tuple(CheckpointRecord(**each) for each in record["checkpoints"]))
    if not _lost(objects, pipeline, known, last_completed):
        return known
    after = CheckpointRecord(
        ordinal=known.current.ordinal + 1,
        first_batch=-1 if last_completed is None else last_completed + 1,
        start=end_offset,
    )
    renewed = Generations(known.generation, (*known.checkpoints, after))
    if objects.put_if_match(key, renewed.encode(), found.etag) is None:
        raise _contended(pipeline)
    return renewed


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
) -> dict[str, Any] | None:
    """A batch's end offset of the one source, from Spark's own offset log; None where the log has no such batch."""
    folder = paths.checkpoint(pipeline, generations.generation, generations.current.ordinal)
    found = objects.get(f"{folder}/offsets/{spark_batch_id}")
    if found is None:
        return None
    lines = found.data.decode().splitlines()
    offset = json.loads(lines[2])
    return offset if isinstance(offset, dict) else None
