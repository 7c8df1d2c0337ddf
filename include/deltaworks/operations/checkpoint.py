"""Mending what a stream refuses to start on: a damaged checkpoint, a ledger that lost batches."""

from __future__ import annotations

from pydantic import Field

from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options


class RepairOptions(Options):
    """Options of a repair."""

    retire: bool = Field(False, description="Retire the checkpoint also where nothing is wrong with it.")
    dry_run: bool = Field(True, description="Only say what is wrong and what would be done.")


def repair(context: OperationContext, options: RepairOptions) -> Report:
    """Retire a damaged checkpoint and complete the ledger. The stream has to be stopped. Idempotent."""
    from deltaworks.rework.recover.checkpoint import repair_checkpoint

    pipeline, dry_run = context.subject, options.dry_run
    result = repair_checkpoint(context.catalog, pipeline, dry_run=dry_run, retire=options.retire)
    parts = [f"damaged: {line}" for line in result.damaged]
    if result.ledger:
        parts.append(f"the ledger is behind: {result.ledger}")
    if not (result.damaged or result.ledger or options.retire):
        return Report(parts=[f"Nothing is wrong with the checkpoint of {pipeline}."], results=[result])
    if result.ledger:
        done = "would be recorded" if dry_run else "were recorded"
        parts.append(f"{result.ledger_batches} prepared batches {done} in the ledger again.")
    if result.damaged or options.retire:
        done = "would be retired" if dry_run else "is retired"
        parts.append(f"The checkpoint {done}; the next start goes on from the ledger with a new one.")
    if dry_run:
        parts.append("Nothing was changed: --no-dry-run does it.")
    return Report(parts=parts, results=[result])
