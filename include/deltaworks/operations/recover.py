"""Recovery of what is damaged or held back: tables that lost commits, files or themselves, checkpoints, suspensions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.control.provenance import current_person
from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional, TableNames
from deltaworks.operations.restore import describe_restore

if TYPE_CHECKING:
    from deltaworks.recovery.restore.table_restore import TableRestoreResult


_MAX_SHOWN = 20
_TABLE = TableNames(("bronze", "quarantine"))
_DRY_RUN = "Only say what is wrong and what would be done."
_ALLOW_MISSING = "Leave out rows whose objects are gone too: they are lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """The damage and its repair: `rows_out` bounds how many rows a repair may remove."""

    pipeline: str
    table: str
    dry_run: bool
    rows_out: int
    summary: str


class LogOptions(Options):
    """Options of the recovery of a log."""

    table: Annotated[str, Positional(), _TABLE] = Field(description="The table whose log has lost commits.")
    max_rows: int | None = Field(
        None, ge=0, description="Refuse to take out more rows than this, where the table has to go back."
    )
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_log(context: OperationContext, options: LogOptions) -> Report:
    """Recreate lost commits from prepared batches; where that is impossible, go back to before them. Idempotent."""
    from deltaworks.recovery.repair.log_gap import repair_log

    pipeline, table = context.subject, options.table
    result = repair_log(context.catalog, pipeline, table, dry_run=options.dry_run, max_rows=options.max_rows)
    verb = "would be" if options.dry_run else "was"
    parts: list[str | Listing] = [
        f"Version {version} {verb} recreated from batch {batch}." for version, batch in result.recreated.items()
    ]
    parts += [f"Version {version}, of which nothing is on record, {verb} filled in." for version in result.filled]
    broken = bool(result.recreated or result.filled or result.restore)
    return _report(context, options, parts, result.restore, is_damaged=broken, subject=f"the log of {pipeline}.{table}")


class FilesOptions(Options):
    """Options of the recovery of data files."""

    table: Annotated[str, Positional(), _TABLE] = Field(description="The table whose data files are gone.")
    max_rows: int | None = Field(None, ge=0, description="Refuse where more rows than this are gone; needed to do it.")
    allow_missing: bool = Field(False, description=_ALLOW_MISSING)
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_files(context: OperationContext, options: FilesOptions) -> Report:
    """Take lost files out of the log, and bring their rows back from the objects they came from. Idempotent."""
    from deltaworks.recovery.repair.lost_files import repair_files

    pipeline, table = context.subject, options.table
    result = repair_files(
        context.catalog,
        pipeline,
        table,
        dry_run=options.dry_run,
        max_rows=options.max_rows,
        allow_missing=options.allow_missing,
    )
    parts: list[str | Listing] = [f"gone: {path}" for path in result.files[:_MAX_SHOWN]]
    if result.files:
        span = f", {result.batches[0]} to {result.batches[-1]}" if result.batches else ""
        parts.append(f"{len(result.files)} files had {result.rows:,} rows, of {len(result.batches)} batches{span}.")
    if result.restore is None and options.dry_run and result.files:
        parts.append(f"To do it add: --max-rows {result.rows} --no-dry-run")
    broken = bool(result.files or result.restore)
    return _report(
        context,
        options,
        parts,
        result.restore,
        is_damaged=broken,
        subject=f"the files of {pipeline}.{table}",
        rows_out=result.rows,
    )


class TableOptions(Options):
    """Options of the recovery of a dropped table."""

    table: Annotated[str, Positional(), _TABLE] = Field(description="The table that was dropped.")
    allow_missing: bool = Field(False, description=_ALLOW_MISSING)
    dry_run: bool = Field(True, description=_DRY_RUN)


def recover_table(context: OperationContext, options: TableOptions) -> Report:
    """Recreate a dropped table and bring back every batch that had landed in it. Continues where it was interrupted."""
    from deltaworks.recovery.repair.lost_files import repair_table

    pipeline, name = context.subject, options.table
    result = repair_table(context.catalog, pipeline, name, dry_run=options.dry_run, allow_missing=options.allow_missing)
    origin = "the files of their batches" if result.repair == "prepared" else "the objects they came from"
    last = max(result.last_batches.values(), default=None)
    parts: list[str | Listing] = [f"The ledger knows {result.rows:,} rows up to batch {last}; they come from {origin}."]
    return _report(context, options, parts, result.restore, is_damaged=True, subject=f"{pipeline}.{name}")


def _report(
    context: OperationContext,
    options: LogOptions | FilesOptions | TableOptions,
    parts: list[str | Listing],
    restore: TableRestoreResult | None,
    *,
    is_damaged: bool,
    subject: str,
    rows_out: int = 0,
) -> Report:
    parts = [*parts, *(describe_restore(restore) if restore is not None else [])]
    if not is_damaged:
        parts.append(f"Nothing is wrong with {subject}.")
    elif options.dry_run:
        parts.append("Nothing was changed: --no-dry-run does it.")
    if restore is not None and restore.difference is not None:
        rows_out = restore.difference.rows_removed
    summary = RecoverySummary(
        pipeline=context.subject,
        table=options.table,
        dry_run=options.dry_run,
        rows_out=rows_out,
        summary=" ".join(part for part in parts if isinstance(part, str)),
    )
    return Report(parts=parts, results=[summary])


class RepairOptions(Options):
    """Options of a repair."""

    retire: bool = Field(False, description="Retire the checkpoint also where nothing is wrong with it.")
    dry_run: bool = Field(True, description="Only say what is wrong and what would be done.")


def repair(context: OperationContext, options: RepairOptions) -> Report:
    """Retire a damaged checkpoint and complete the ledger. The stream has to be stopped. Idempotent."""
    from deltaworks.recovery.repair.checkpoint import repair_checkpoint

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
        parts.append(f"The checkpoint {done}; the next start continues from the ledger with a new one.")
    if dry_run:
        parts.append("Nothing was changed: --no-dry-run does it.")
    return Report(parts=parts, results=[result])


class ResumeOptions(Options):
    """Options of a resume."""

    table: Annotated[str, Positional(), TableNames(("bronze", "keyed", "quarantine"))] = Field(
        description="The suspended table."
    )
    wait_seconds: float = Field(120.0, ge=0, description="How long to wait for the stream to answer; 0 only asks.")


def resume(context: OperationContext, options: ResumeOptions) -> Report:
    """Ask the stream to catch a table up, in the order of its batches. Asking twice is asking once.

    Raises:
        ConfigError: TABLE_NOT_SUSPENDED.
        ContractError: what the table failed with again.
    """
    from deltaworks.control import paths
    from deltaworks.control.home import PipelineHome
    from deltaworks.control.locks.lease import LeaseWatch

    pipeline, table = context.subject, options.table
    home = PipelineHome.open(context.catalog.environment.lake, pipeline)
    before = home.held.read().get(table)
    if before is None or before.reason != "suspended":
        raise ConfigError(
            "TABLE_NOT_SUSPENDED",
            f"{pipeline}.{table} is not suspended.",
            hint="`deltaworks tables` lists what is held, and why.",
        )
    home.held.request_resume(table, by=current_person())
    lease = LeaseWatch(home.objects, paths.stream_lease(pipeline), silent_seconds=60)
    if not lease.is_held():
        return Report(parts=[f"Asked. The stream of {pipeline} does not run; its next start catches {table} up."])
    deadline = time.monotonic() + options.wait_seconds
    while time.monotonic() < deadline:
        held = home.held.read().get(table)
        if held is None:
            return Report(parts=[f"{pipeline}.{table} has caught up."])
        if home.objects.get(paths.resume_request(pipeline, table)) is None:
            raise ContractError(held.condition or "TABLE_SUSPENDED", held.message, hint=held.hint)
        time.sleep(1)
    return Report(
        parts=[f"Asked. The stream has not finished yet; `deltaworks tables {pipeline}` shows how far it is."]
    )
