"""Repairs a damaged Spark checkpoint and a ledger that lost batches. Either keeps a stream from starting.

A damaged checkpoint is retired; the next start continues from the ledger with a new checkpoint. A ledger is rebuilt by
committing the prepared batches again, oldest first. The tables already have these steps, so only ledger rows are
written. Dry run by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.checkpoint import damaged_files, describe_ledger_gap
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.recovery import open_batch_processor, stream_lease
from deltaworks.errors import ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import read_last_completed


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """The damage found and the repairs made. `ledger_batches` counts the batches added to the ledger (dry run: to be
    added).
    """

    pipeline: str
    dry_run: bool
    damaged: tuple[str, ...]
    ledger: str
    retired: bool
    ledger_batches: int


def repair_checkpoint(catalog: Catalog, pipeline: str, *, dry_run: bool = True, retire: bool = False) -> RepairResult:
    """Repairs a damaged checkpoint or ledger of a pipeline; a dry run only reports the damage. Idempotent.

    Takes the stream's lease, so it never runs concurrently with the stream.

    Args:
        retire: retire the checkpoint even if it is undamaged.

    Raises:
        ConcurrencyError: LEASE_HELD, the stream runs.
        ContractError: START_OVER_UNFINISHED; LEDGER_NOT_REBUILDABLE, there is a gap in the prepared batches.
    """
    spec = catalog.pipeline(pipeline)
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    lake = Lake(catalog.environment.lake)
    home.start_overs.reject_unfinished()
    generation = home.generations.current()
    lease = stream_lease(lake, home, spec)
    with lease.held(wait_seconds=spec.stream.lease_ttl_seconds * 1.5):
        epoch = lease.epoch
        generations = home.generations.read()
        last = read_last_completed(lake, pipeline, generation)
        evidence = describe_ledger_gap(home, generations, generation=generation, last_completed=last)
        waiting = _missing_batches(home.prepared.numbers(generation), last, pipeline) if evidence else []
        damaged = damaged_files(home, generations) if generations and not generations.current.retired else []
        if not dry_run:
            if waiting:
                if last is None and waiting[0] > 0:
                    Ledger(lake, pipeline, generation).start_after(waiting[0] - 1, owner=owner_step(pipeline, epoch))
                processor, _ = open_batch_processor(
                    None, catalog, spec, home.objects, lease=lease, epoch=epoch, check_ledger=False
                )
                while processor.complete_prepared() is not None:
                    pass
            if damaged or retire:
                home.generations.retire_checkpoint()
    return RepairResult(
        pipeline=pipeline,
        dry_run=dry_run,
        damaged=tuple(f"{file.key}: {file.problem}" for file in damaged),
        ledger=evidence,
        retired=bool(damaged or retire) and not dry_run,
        ledger_batches=len(waiting),
    )


def _missing_batches(prepared: list[int], last: int | None, pipeline: str) -> list[int]:
    """Returns the prepared batches that the ledger lacks. They must be contiguous."""
    missing = [batch for batch in prepared if last is None or batch > last]
    first = missing[0] if last is None and missing else (last or 0) + 1
    if missing != list(range(first, first + len(missing))) or not missing:
        raise ContractError(
            "LEDGER_NOT_REBUILDABLE",
            f"The ledger of {pipeline!r} cannot be rebuilt: there is a gap in the prepared batches that it lacks.",
        )
    return missing
