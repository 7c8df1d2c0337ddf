"""Recovers tables with lost commits or data files, dropped tables, damaged checkpoints, and suspended tables."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.control.provenance import current_person
from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.base import Look, OperationContext, Report
from deltaworks.operations.options import Options, Positional, TableNames
from deltaworks.operations.restore import describe_restore

if TYPE_CHECKING:
    from deltaworks.recovery.restore.table_restore import TableRestoreResult
    from deltaworks.specs.catalog import Catalog


_MAX_SHOWN = 20
_TABLE = TableNames(("bronze", "quarantine"))
_DRY_RUN = "Only report the damage and the planned repair."
_ALLOW_MISSING = "Accept that rows whose objects no longer exist are lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """The damage and its repair. A bound on `rows_removed` limits the number of rows that a repair may remove."""

    pipeline: str
    table: str
    dry_run: bool
    rows_removed: int
    summary: str


def look_at_data_files(catalog: Catalog) -> Look:
    """Compares files of tables with their logs, raises and resolves their alerts, and tells whether files are damaged
    or nothing could be compared.
    """
    from deltaworks.control.clock import utc_now
    from deltaworks.control.objects import open_objects
    from deltaworks.recovery.repair.data_file_check import check_files

    result = check_files(catalog, open_objects(catalog.environment.lake), now=utc_now())
    if result.damaged:
        return Look(work=len(result.damaged), reason=" ".join(result.damaged))
    if result.unknown and not result.compared:
        return Look(work=1, reason=f"no table could be compared: {result.unknown[0]}")
    return Look(work=0, reason=f"no file of {result.compared} compared tables is damaged", results=[result])


class LogOptions(Options):
    """Options of a log recovery."""

    table: Annotated[str, Positional(), _TABLE] = Field(description="The table whose log lost commits.")
    max_rows: int | None = Field(
        None, ge=0, description="Refuse to remove more rows than this if the table has to be restored."
    )
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_log(context: OperationContext, options: LogOptions) -> Report:
    """Recreates lost commits from prepared batches, or restores the table to the version before them. Idempotent."""
    from deltaworks.recovery.repair.log_gap import repair_log

    pipeline, table = context.subject, options.table
    result = repair_log(context.catalog, pipeline, table, dry_run=options.dry_run, max_rows=options.max_rows)
    verb = "would be" if options.dry_run else "was"
    parts: list[str | Listing] = [
        f"Version {version} {verb} recreated from batch {batch}." for version, batch in result.recreated.items()
    ]
    parts += [f"Version {version}, which is not on record, {verb} filled in." for version in result.filled]
    broken = bool(result.recreated or result.filled or result.restore)
    return _report(context, options, parts, result.restore, is_damaged=broken, subject=f"the log of {pipeline}.{table}")


class FilesOptions(Options):
    """Options of a recovery of data files."""

    table: Annotated[str, Positional(), _TABLE] = Field(
        description="The table whose data files are missing or unreadable."
    )
    max_rows: int | None = Field(
        None, ge=0, description=("Refuse if more rows than this are missing; required to apply it.")
    )
    full: bool = Field(False, description="Also read all rows of each file; otherwise only sizes and footers.")
    allow_missing: bool = Field(False, description=_ALLOW_MISSING)
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_files(context: OperationContext, options: FilesOptions) -> Report:
    """Removes missing and unreadable files from the log and restores their rows from their objects. Idempotent."""
    from deltaworks.recovery.repair.lost_files import repair_files

    pipeline, table = context.subject, options.table
    result = repair_files(
        context.catalog,
        pipeline,
        table,
        dry_run=options.dry_run,
        max_rows=options.max_rows,
        allow_missing=options.allow_missing,
        full=options.full,
    )
    parts: list[str | Listing] = [f"{path} {problem}" for path, problem in islice(result.problems.items(), _MAX_SHOWN)]
    if result.files:
        span = f", {result.batches[0]} to {result.batches[-1]}" if result.batches else ""
        more = f", without {result.uncounted} files whose number of rows is unknown" if result.uncounted else ""
        held = f"{result.rows:,} rows{more}"
        parts.append(f"{len(result.files)} files had {held}, of {len(result.batches)} batches{span}.")
    if result.restore is None and options.dry_run and result.files:
        parts.append(f"To apply it add: --max-rows {result.rows} --no-dry-run")
    broken = bool(result.files or result.restore)
    return _report(
        context,
        options,
        parts,
        result.restore,
        is_damaged=broken,
        subject=f"the files of {pipeline}.{table}",
        rows_removed=result.rows,
    )


class TableOptions(Options):
    """Options of a recovery of a dropped table."""

    table: Annotated[str, Positional(), _TABLE] = Field(description="The table that was dropped.")
    allow_missing: bool = Field(False, description=_ALLOW_MISSING)
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_table(context: OperationContext, options: TableOptions) -> Report:
    """Recreates a dropped table with all landed batches. Continues an interrupted recovery."""
    from deltaworks.recovery.repair.lost_files import repair_table

    pipeline, name = context.subject, options.table
    try:
        result = repair_table(
            context.catalog, pipeline, name, dry_run=options.dry_run, allow_missing=options.allow_missing
        )
    except ConfigError as error:
        if not options.dry_run or error.condition != "TABLE_NOT_DROPPED":
            raise
        return _report(context, options, [error.message], None, is_damaged=False, subject=f"{pipeline}.{name}")
    origin = "the files of their batches" if result.repair == "prepared" else "their source objects"
    last = max(result.last_batches.values(), default=None)
    parts: list[str | Listing] = [
        (f"The ledger has {result.rows:,} rows up to batch {last}; they are restored from {origin}.")
    ]
    return _report(context, options, parts, result.restore, is_damaged=True, subject=f"{pipeline}.{name}")


def _report(
    context: OperationContext,
    options: LogOptions | FilesOptions | TableOptions,
    parts: list[str | Listing],
    restore: TableRestoreResult | None,
    *,
    is_damaged: bool,
    subject: str,
    rows_removed: int = 0,
) -> Report:
    parts = [*parts, *(describe_restore(restore) if restore is not None else [])]
    if not is_damaged:
        parts.append(f"No damage found in {subject}.")
    elif options.dry_run:
        parts.append("Nothing was changed. Use --no-dry-run to apply it.")
    if restore is not None and restore.difference is not None:
        rows_removed = restore.difference.rows_removed or 0
    summary = RecoverySummary(
        pipeline=context.subject,
        table=options.table,
        dry_run=options.dry_run,
        rows_removed=rows_removed,
        summary=" ".join(part for part in parts if isinstance(part, str)),
    )
    return Report(parts=parts, results=[summary])


class RepairOptions(Options):
    """Options of a checkpoint repair."""

    retire: bool = Field(False, description="Retire the checkpoint even without damage.")
    dry_run: bool = Field(True, description="Only report the damage and the planned repair.")


def repair(context: OperationContext, options: RepairOptions) -> Report:
    """Retires a damaged checkpoint, so that the stream continues from the ledger, and completes the ledger.

    The stream has to be stopped. Idempotent.
    """
    from deltaworks.recovery.repair.checkpoint import repair_checkpoint

    pipeline, dry_run = context.subject, options.dry_run
    result = repair_checkpoint(context.catalog, pipeline, dry_run=dry_run, retire=options.retire)
    parts = [f"damaged: {line}" for line in result.damaged]
    if result.ledger:
        parts.append(f"the ledger is behind: {result.ledger}")
    if not (result.damaged or result.ledger or options.retire):
        return Report(parts=[f"No damage found in the checkpoint of {pipeline}."], results=[result])
    if result.ledger:
        outcome = "would be recorded" if dry_run else "were recorded"
        parts.append(f"{result.ledger_batches} prepared batches {outcome} in the ledger again.")
    if result.damaged or options.retire:
        outcome = "would be retired" if dry_run else "is retired"
        parts.append(f"The checkpoint {outcome}; the next start continues from the ledger with a new one.")
    if dry_run:
        parts.append("Nothing was changed. Use --no-dry-run to apply it.")
    return Report(parts=parts, results=[result])


class ResumeOptions(Options):
    """Options of a resume."""

    table: Annotated[str, Positional(), TableNames(("bronze", "keyed", "quarantine"))] = Field(
        description="The suspended table."
    )
    wait_seconds: float = Field(120.0, ge=0, description="Seconds to wait for the stream; 0 only sends the request.")


def resume(context: OperationContext, options: ResumeOptions) -> Report:
    """Requests that the stream commits the held batches of a suspended table, in batch order. Idempotent.

    Raises:
        ConfigError: TABLE_NOT_SUSPENDED.
        ContractError: the error of the table occurred again.
    """
    from deltaworks.control import paths
    from deltaworks.control.home import PipelineHome
    from deltaworks.control.locks.lease import LeaseWatch

    pipeline, table = context.subject, options.table
    home = PipelineHome.open(context.catalog.environment.lake, pipeline)
    before = home.held.read().get(table)
    if before is None or before.reason != "suspended":
        raise ConfigError("TABLE_NOT_SUSPENDED", f"{pipeline}.{table} is not suspended.")
    home.held.request_resume(table, by=current_person())
    lease = LeaseWatch(home.objects, paths.stream_lease(pipeline), silent_seconds=60)
    if not lease.is_held():
        return Report(
            parts=[(f"Requested. The stream of {pipeline} is not running; it catches up {table} at its next start.")]
        )
    deadline = time.monotonic() + options.wait_seconds
    while time.monotonic() < deadline:
        held = home.held.read().get(table)
        if held is None:
            return Report(parts=[f"{pipeline}.{table} has caught up."])
        if home.objects.get(paths.resume_request(pipeline, table)) is None:
            raise ContractError(held.condition or "TABLE_SUSPENDED", held.message, hint=held.hint)
        time.sleep(1)
    return Report(
        parts=[f"Requested. The stream has not finished yet; `deltaworks tables {pipeline}` shows its progress."]
    )
