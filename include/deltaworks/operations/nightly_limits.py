"""Applies the limits of unattended nightly maintenance: a forced dry run, or a maximum share to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaworks.operations.base import OperationContext

if TYPE_CHECKING:
    from deltaworks.maintenance.deletion_limits import DeletionLimit


def apply_nightly_limits(context: OperationContext, *, dry_run: bool) -> tuple[bool, DeletionLimit | None]:
    """Returns whether an operation must be a dry run, and its deletion limit.

    If a person runs the operation, returns the requested `dry_run` and no limit.
    """
    if not context.nightly:
        return dry_run, None
    from deltaworks.control.home import PipelineHome
    from deltaworks.maintenance.deletion_limits import DeletionLimit, first_night_reason
    from deltaworks.maintenance.layout import optimized_tables
    from deltaworks.tables.lake import Lake

    storage, spec = context.catalog.environment.lake, context.catalog.pipeline(context.subject)
    home = PipelineHome.open(storage, context.subject)
    dry_run_reason = first_night_reason(Lake(storage), home, list(optimized_tables(spec)), alert=not dry_run)
    if dry_run_reason and not dry_run:
        context.echo(f"Nothing is deleted: {dry_run_reason}.")
    return dry_run or bool(dry_run_reason), DeletionLimit(share=spec.maintenance.max_removed_share)
