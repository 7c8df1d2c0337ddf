"""Restores one table or a complete pipeline to an earlier state, or starts a pipeline over."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from deltaworks.control.listing import Listing, format_bytes
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional, Section, TableNames

if TYPE_CHECKING:
    from deltaworks.control.records.generations import LostCommit
    from deltaworks.recovery.restore.restore_points import RestorePoint
    from deltaworks.recovery.restore.table_restore import TableRestoreResult


_MAX_SHOWN = 20
_LATER_ROWS_SECTION = Section("Later rows")
_LATER_ROWS_OUTCOME = {"prepared": "come back", "source": "are read again", "none": "stay out"}


class RestoreOptions(Options):
    """Options of a restore."""

    table: Annotated[str | None, Positional(), TableNames(("bronze", "quarantine"))] = Field(
        None,
        description=("The table; without it all tables are restored to one batch, and the stream has to be stopped."),
    )
    to_batch: int | None = Field(None, ge=0, description="Restore the state after this batch.")
    to_time: str | None = Field(
        None,
        description=("Restore the newest version, or the last complete batch, at this time: 2026-01-31T12:00:00Z."),
    )
    to_version: int | None = Field(None, ge=0, description="Restore this version of the table.")
    repair: Annotated[Literal["prepared", "source", "none"], _LATER_ROWS_SECTION] = Field(
        "prepared",
        description="Rows that landed later: add their files again, read their objects again, or leave them out.",
    )
    allow_missing: Annotated[bool, _LATER_ROWS_SECTION] = Field(
        False, description="With repair source: leave out rows of objects that no longer exist."
    )
    max_rows: int | None = Field(
        None, ge=0, description=("Refuse to remove more rows than this; required to apply it.")
    )
    reason: str | None = Field(None, description="The reason; recorded.")
    dry_run: bool = Field(True, description="Only report which rows would be removed and added.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSummary:
    """The rows that a restore removes. A bound on `rows_removed` limits their number."""

    pipeline: str
    table: str
    dry_run: bool
    rows_removed: int
    summary: str


def restore(context: OperationContext, options: RestoreOptions) -> Report:
    """Restores one table or a pipeline. Continues an interrupted restore as planned."""
    point = restore_point(options)
    return _restore_table(context, options, point) if options.table else _restore_pipeline(context, options, point)


def restore_point(options: RestoreOptions) -> RestorePoint | None:
    """Returns the version, batch or time to restore; None if the options name none, which continues an interrupted
    restore.

    Raises:
        ConfigError: RESTORE_POINT_INVALID.
    """
    if options.to_version is None and options.to_batch is None and options.to_time is None:
        return None
    from deltaworks.recovery.restore.restore_points import RestorePoint

    try:
        at = dt.datetime.fromisoformat(options.to_time) if options.to_time else None
    except ValueError as error:
        raise ConfigError(
            "RESTORE_POINT_INVALID",
            f"{options.to_time!r} is not an ISO 8601 time.",
            hint="Write it as 2026-01-31T12:00:00Z.",
        ) from error
    return RestorePoint(
        version=options.to_version,
        time=at.replace(tzinfo=dt.UTC) if at is not None and at.tzinfo is None else at,
        batch=options.to_batch,
    )


def _restore_table(context: OperationContext, options: RestoreOptions, point: RestorePoint | None) -> Report:
    from deltaworks.recovery.restore.plan import TableRestoreRequest
    from deltaworks.recovery.restore.table_restore import TableRestore

    restore = TableRestore(context.catalog, context.subject, str(options.table))
    request: TableRestoreRequest | None = None
    if point is not None:
        request = TableRestoreRequest(
            point=point, repair=options.repair, max_rows=options.max_rows, reason=options.reason or ""
        )
    if not options.dry_run:
        from deltaworks.recovery.quarantine.open_rows import recount_quarantine

        result = restore.run(request, allow_missing=options.allow_missing)
        recount_quarantine(context.catalog.environment.lake, context.subject)
    elif request is None:
        raise _point_missing()
    else:
        result = restore.count(request)
    return Report(parts=describe_restore(result), results=[_table_summary(result)])


def _point_missing() -> ConfigError:
    return ConfigError(
        "RESTORE_POINT_INVALID",
        "No restore point is given.",
        hint="Give --to-batch, --to-time or, for one table, --to-version.",
    )


def _table_summary(result: TableRestoreResult) -> RestoreSummary:
    batches = sum(share.kind == "batch" for share in result.lost)
    lines = [
        f"version {result.from_version} goes to {result.to_version}",
        f"{batches} batches since {_LATER_ROWS_OUTCOME[result.repair]}",
        *(f"undone: {change}" for change in result.undone_changes),
        *(f"{follower.pipeline} follows it and {follower.effect}" for follower in result.downstream),
        *(f"gone: {path}" for path in result.missing_files),
    ]
    return RestoreSummary(
        pipeline=result.pipeline,
        table=result.table,
        dry_run=result.dry_run,
        rows_removed=(result.difference.rows_removed or 0) if result.difference else 0,
        summary="; ".join(lines),
    )


def _restore_pipeline(context: OperationContext, options: RestoreOptions, point: RestorePoint | None) -> Report:
    """Restores all tables to one batch. The stream has to be stopped; afterwards it reads its source from that batch
    on.
    """
    from deltaworks.recovery.restore.dependents import downstream_pipelines
    from deltaworks.recovery.start_over import start_over

    if point is None:
        raise _point_missing()
    result = start_over(
        context.catalog,
        context.subject,
        restore_point=point,
        dry_run=options.dry_run,
        max_rows=options.max_rows,
        reason=options.reason or "",
        spark=context.spark,
    )
    listing = Listing(("table", "from version", "to", "rows out", "files out", "size"))
    parts: list[str | Listing] = []
    for table in result.tables:
        to = "recreated" if table.restore_to is None else str(table.restore_to)
        counts = (f"{table.rows:,}", f"{table.files:,}", format_bytes(table.bytes))
        listing.add(table.table, table.version, to, *counts)
        for follower in downstream_pipelines(context.catalog, context.subject, table.table, None):
            parts.append(f"{table.table} is followed by {follower.pipeline}: it {follower.effect}")
    parts.append(listing)
    if result.strategy is not None:
        parts.append(f"The way: {result.strategy.describe(context.subject)}.")
    if context.catalog.pipeline(context.subject).mutations is not None:
        parts.append("After the next start, the mutation batch applies all requests to all rows again.")
    if result.resumed:
        parts.append("An interrupted restore is continued as planned.")
    parts.append(f"Generation {result.generation} begins with batch {result.first_batch}, after {result.start}.")
    if options.dry_run:
        parts.append(f"Nothing was changed. To apply it add: --max-rows {result.rows} --no-dry-run")
    else:
        parts.append(f"The next start reads the source from there: deltaworks start {context.subject}")
    lines = [
        *(
            f"{table.table}: {table.rows} rows, version {table.version} to {table.restore_to}"
            for table in result.tables
        ),
        f"generation {result.generation} reads on after {result.start}",
        *([] if result.strategy is None else [f"the way: {result.strategy.describe(context.subject)}"]),
    ]
    summary = RestoreSummary(
        pipeline=context.subject, table="", dry_run=options.dry_run, rows_removed=result.rows, summary="; ".join(lines)
    )
    return Report(parts=parts, results=[summary])


def describe_restore(result: TableRestoreResult) -> list[str | Listing]:
    """Describes the restore of one table, for a dry run or a completed restore."""
    parts: list[str | Listing] = []
    if result.resumed:
        parts.append("An interrupted restore was continued as planned.")
    verb = "would go" if result.dry_run else "went"
    became = "" if result.version is None else f", as version {result.version}"
    name = f"{result.pipeline}.{result.table}"
    if result.from_version == result.to_version:
        parts.append(f"{name} {'would stay' if result.dry_run else 'stays'} at version {result.to_version}{became}.")
    else:
        parts.append(f"{name} {verb} from version {result.from_version} to {result.to_version}{became}.")
    parts.append(_difference(result))
    if result.lost:
        parts.append(f"Landed since, which {_LATER_ROWS_OUTCOME[result.repair]}: {describe_lost(result.lost)}.")
    parts += [f"undone: {change}" for change in result.undone_changes[:_MAX_SHOWN]]
    parts += [f"gone: {path}" for path in result.missing_files[:_MAX_SHOWN]]
    if result.unprepared:
        batches = ", ".join(map(str, result.unprepared))
        parts.append(f"without files: batches {batches}; --repair source reads them again.")
    parts += [f"followed by {item.pipeline} ({item.read_mode}): {item.effect}" for item in result.downstream]
    if result.dry_run and result.difference is not None and result.difference.rows_removed is not None:
        parts.append(f"Nothing was changed. To apply it add: --max-rows {result.difference.rows_removed} --no-dry-run")
    return parts


def _difference(result: TableRestoreResult) -> str | Listing:
    if result.difference is None:
        return "Its files had been restored before."
    counts = result.difference
    listing = Listing(("", "files", "rows", "size"))
    rows_out, rows_in = ("?" if rows is None else f"{rows:,}" for rows in (counts.rows_removed, counts.rows_added))
    listing.add("out", f"{counts.files_removed:,}", rows_out, format_bytes(counts.bytes_removed))
    listing.add("in", f"{counts.files_added:,}", rows_in, format_bytes(counts.bytes_added))
    return listing


def describe_lost(lost: tuple[LostCommit, ...]) -> str:
    """Describes batches and replays with their rows in a short text; without rows if files of them were lost."""
    parts = []
    for kind, kinds in (("batch", "batches"), ("replay", "replays")):
        numbers = [share.number for share in lost if share.kind == kind]
        rows = sum(share.rows for share in lost if share.kind == kind)
        if numbers:
            several = f"{len(numbers)} {kinds} of {numbers[0]}-{numbers[-1]}"
            span = several if len(numbers) > 1 else f"{kind} {numbers[0]}"
            parts.append(f"{span}: {rows:,} row{'' if rows == 1 else 's'}" if rows else span)
    return ", ".join(parts)


class StartOverOptions(Options):
    """Options of a start over."""

    max_rows: int | None = Field(None, ge=0, description="Refuse to drop more rows than this; required to apply it.")
    reason: str | None = Field(None, description="The reason; recorded.")
    dry_run: bool = Field(True, description="Only count the rows that would be dropped.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOverSummary:
    """The rows that a start over drops. A bound on `rows_removed` limits their number."""

    pipeline: str
    dry_run: bool
    rows_removed: int
    summary: str


def start_over(context: OperationContext, options: StartOverOptions) -> Report:
    """Starts a new generation of a pipeline. The stream has to be stopped. Continues an interrupted start over."""
    from deltaworks.recovery.start_over import start_over as perform

    pipeline = context.subject
    result = perform(
        context.catalog,
        pipeline,
        dry_run=options.dry_run,
        max_rows=options.max_rows,
        reason=options.reason or "",
        spark=context.spark,
    )
    listing = Listing(("table", "rows given up", "files", "size", "readable as version"))
    for table in result.tables:
        counts = (f"{table.rows:,}", f"{table.files:,}", format_bytes(table.bytes))
        listing.add(table.table, *counts, table.version)
    parts: list[str | Listing] = [listing]
    if result.resumed:
        parts.append("An interrupted restore is continued as planned.")
    parts.append(f"Generation {result.generation} begins with batch {result.first_batch}.")
    if options.dry_run:
        parts.append(
            f"Nothing was changed. Objects that are gone: `deltaworks reprocess {pipeline} --from-start --exact`."
        )
        parts.append(f"To apply it: deltaworks pipelines start-over {pipeline} --max-rows {result.rows} --no-dry-run")
    else:
        hours = context.catalog.pipeline(pipeline).maintenance.vacuum_retention_hours
        parts.append(
            f"{result.recreated} tables were recreated now. Their rows are readable by time travel until a VACUUM that "
            f"comes {hours} h or more after this."
        )
        parts.append(f"The next start reads the source from the beginning: deltaworks start {pipeline}")
    lines = [f"{table.table}: {table.rows} rows" for table in result.tables]
    summary = StartOverSummary(
        pipeline=pipeline,
        dry_run=options.dry_run,
        rows_removed=result.rows,
        summary="; ".join([*lines, f"generation {result.generation} reads the source from its beginning"]),
    )
    return Report(parts=parts, results=[summary])
