"""The upkeep of a night: OPTIMIZE, VACUUM, orphans, control tables, usual input, snapshots of health."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltaworks.control.listing import Listing, format_bytes
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.nightly_limits import apply_nightly_limits
from deltaworks.operations.options import Options, Section, TableNames


class OptimizeOptions(Options):
    """Options of OPTIMIZE."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze", "keyed"))] = Field((), description="Only these tables.")
    round: Literal["daily", "weekly"] = Field(
        "daily", description="weekly: with a second round over what the daily one leaves."
    )
    minutes: float | None = Field(None, ge=1, description="For each round; without it what the pipeline declares.")
    spark: bool = Field(True, description="Off: only what needs no Spark, which is compacting small partitions.")
    dry_run: bool = Field(True, description="Only say what would be rewritten, and why.")


def optimize(context: OperationContext, options: OptimizeOptions) -> Report:
    """Rewrite partitions, best first, within the minutes. A repeated run continues where the last one ended."""
    tables = list(options.tables) or None
    if options.dry_run:
        return _plan_report(context, options, tables)
    from deltaworks.control.job import print_results
    from deltaworks.maintenance.optimize_night import optimize_tables

    optimize_tables(
        context.spark if options.spark else None,
        context.catalog,
        context.subject,
        weekly=options.round == "weekly",
        minutes=options.minutes,
        tables=tables,
        report=print_results,
    )
    return Report()


def _plan_report(context: OperationContext, options: OptimizeOptions, tables: list[str] | None) -> Report:
    from deltaworks.control.clock import utc_now
    from deltaworks.maintenance.night_plan import plan_night
    from deltaworks.maintenance.select_partitions import read_policy, select_partitions
    from deltaworks.tables.lake import Lake

    spec = context.catalog.pipeline(context.subject)
    policy, upkeep = read_policy(spec), spec.maintenance
    weekly = options.round == "weekly"
    if weekly:
        # The second round takes all that the daily one would.
        policy = policy.weekly()
    minutes = options.minutes or (upkeep.weekly_minutes if weekly else upkeep.optimize_minutes)
    choices = select_partitions(
        Lake(context.catalog.environment.lake), spec, policy=policy, now=utc_now(), tables=tables
    )
    night = plan_night(choices, budget_seconds=minutes * 60)
    listing = Listing(("table", "partitions", "files saved", "MB rewritten", "seconds", "put off", "why"))
    for choice in choices:
        selected = night.selected_partitions(choice.table)
        listing.add(
            choice.table,
            f"{len(selected):,}",
            f"{sum(partition.files_saved for partition in selected):,}",
            f"{sum(partition.bytes_rewritten for partition in selected) / 1e6:,.1f}",
            f"{sum(partition.cost_seconds for partition in selected):,.0f}",
            f"{len(night.deferred_partitions(choice.table)):,}",
            choice.reason,
        )
    return Report(parts=[listing, f"{night.cost_seconds / 60:,.1f} of {minutes:,.0f} minutes. Nothing was changed."])


class OrphanOptions(Options):
    """Options of the removal of orphans."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze", "keyed"))] = Field((), description="Only these tables.")
    age_hours: int = Field(168, ge=0, description="Leave younger files alone; a list may look at younger ones.")
    dry_run: bool = Field(True, description="Only list them.")


def orphans(context: OperationContext, options: OrphanOptions) -> Report:
    """List, or remove, files that no commit names. Idempotent; safe beside the stream for files of that age."""
    from deltaworks.maintenance.orphans import remove_orphans

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    results = remove_orphans(
        context.catalog,
        context.subject,
        dry_run=dry_run,
        age_hours=options.age_hours,
        tables=list(options.tables) or None,
        limit=bound,
    )
    listing = Listing(("what", "files", "size", "oldest", ""))
    for result in results:
        listing.add(result.target, f"{result.files:,}", format_bytes(result.bytes), result.oldest, result.reason)
    end = ["Nothing was removed: --no-dry-run does it."] if dry_run else []
    return Report(parts=[listing, *end], results=results)


class ControlTableOptions(Options):
    """Options of the compaction of control tables."""

    dry_run: bool = Field(True, description="Only count.")


def compact_control_tables(context: OperationContext, options: ControlTableOptions) -> Report:
    """Merge small files of control tables and delete old ones. Idempotent; safe beside the stream."""
    from deltaworks.maintenance.control_tables import compact_control_tables

    dry_run, _ = apply_nightly_limits(context, dry_run=options.dry_run)
    return Report(results=compact_control_tables(context.catalog, context.subject, dry_run=dry_run))


class ExpiryOptions(Options):
    """Options of the expiry of quarantine and archive."""

    dry_run: bool = Field(True, description="Only count.")


def expire(context: OperationContext, options: ExpiryOptions) -> Report:
    """Remove rows in quarantine and payloads in the archive that are older than declared. Idempotent."""
    from deltaworks.recovery.quarantine.expire import expire_quarantine
    from deltaworks.recovery.quarantine.summary import recount_quarantine

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    results = expire_quarantine(context.catalog, context.subject, dry_run=dry_run, limit=bound)
    # Every night, so that a summary which was lost is there again.
    recount_quarantine(context.catalog.environment.lake, context.subject)
    return Report(results=results)


class LearnOptions(Options):
    """Learning the usual input takes no options."""


def learn_input_rate(context: OperationContext, options: LearnOptions) -> Report:
    """Keep how much input each hour of the day usually has. Idempotent."""
    from deltaworks.maintenance.learn_input_rate import learn_input_rate as learn

    return Report(results=[learn(context.catalog, context.subject)])


class SnapshotOptions(Options):
    """Options of a snapshot."""

    list_folders: bool = Field(False, description="Also look for files that nothing needs, by listing the folders.")


def snapshot_health(context: OperationContext, options: SnapshotOptions) -> Report:
    """Append the health of every table as it is now. Two snapshots at once are both kept."""
    from deltaworks.maintenance.table_health.snapshots import snapshot_tables
    from deltaworks.maintenance.table_health.summary import write_tables_summary

    return Report(
        results=snapshot_tables(
            context.catalog,
            pipeline=context.subject,
            list_folders=options.list_folders,
            report=lambda reports, taken_at: write_tables_summary(
                context.catalog, context.subject, reports, taken_at=taken_at
            ),
        )
    )


_SHORT_RETENTION = Section("Less than seven days")


class VacuumOptions(Options):
    """Options of VACUUM."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze", "keyed"))] = Field((), description="Only these tables.")
    mode: Literal["lite", "full"] | None = Field(
        None, description="lite: by the log alone; full: by listing the folder; without it by turns."
    )
    retention_hours: Annotated[int | None, _SHORT_RETENTION] = Field(
        None, ge=24, description="Hours that files out of use are kept; without it what the pipeline declares."
    )
    allow_below_minimum: Annotated[str | None, _SHORT_RETENTION] = Field(
        None, description="Why less than 168 h is to be kept; it is written into the tables' logs."
    )
    max_files: int | None = Field(None, ge=0, description="Refuse to delete more files than this.")
    dry_run: bool = Field(True, description="Only list what would be deleted.")


def vacuum(context: OperationContext, options: VacuumOptions) -> Report:
    """Delete files that no retained version and no reader needs. Idempotent; final for versions that do."""
    from deltaworks.maintenance.vacuum import vacuum_tables

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    return Report(
        results=vacuum_tables(
            context.spark,
            context.catalog,
            context.subject,
            tables=list(options.tables) or None,
            dry_run=dry_run,
            retention_hours=options.retention_hours,
            below_minimum=options.allow_below_minimum or "",
            mode=options.mode,
            max_files=options.max_files,
            limit=bound,
        )
    )
