"""Operations of nightly maintenance: file layout and cleanup, control tables, input rates, health, and lost events.

Unattended runs have limits: a forced dry run, or a maximum share to delete. Lost events are those that a collector
acknowledged and that the lake does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from deltaworks.control.listing import Listing, format_bytes
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import ENGINE_SECTION, Options, Section, TableNames

if TYPE_CHECKING:
    from deltaworks.maintenance.deletion_limits import DeletionLimit
    from deltaworks.maintenance.optimize_night import NightPlan
    from deltaworks.maintenance.partition_choice import TableChoice


class LostEventsOptions(Options):
    """Options of the search for lost events."""

    accept: bool = Field(default=False, description="Write off the missing events; they are not reported again.")


def report_lost_events(context: OperationContext, options: LostEventsOptions) -> Report:
    """Compares the sequence numbers that a pipeline's collectors assigned with those in the lake, up to an hour ago.

    Missing numbers are recorded for the health check, which alerts (EVENTS_LOST). Idempotent; safe at any time.
    """
    from deltaworks.control.objects import open_objects
    from deltaworks.maintenance.lost_events import find_lost_events

    catalog = context.catalog
    objects = open_objects(catalog.environment.lake)
    collectors = [
        name
        for name, spec in catalog.collectors.items()
        if any(source.pipeline == context.subject for source in spec.sources.values())
    ]
    losses = [find_lost_events(catalog, objects, name, accept_losses=options.accept) for name in collectors]
    parts = [] if losses else [f"No collector feeds {context.subject}."]
    for item in losses:
        if item.unverifiable_pipelines:
            parts.append(
                f"{item.collector}: whether events are lost cannot be said: no catch-all table of "
                f"{', '.join(item.unverifiable_pipelines)} has columns of _collector.collector and _collector.seq."
            )
            continue
        lost = sum(missing.events for missing in item.missing)
        parts.append(f"{item.collector}: {item.events:,} numbers looked for, {lost:,} of them are nowhere.")
        parts += [f"  {missing.id}: {missing.first} to {missing.last}" for missing in item.missing]
    return Report(parts=parts, results=losses)


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


_ONE_PARTITION = Section("One partition")


class OptimizeOptions(Options):
    """Options of OPTIMIZE. A dry run plans without a JVM; its results count the partitions by action.

    Without `spark`, only small partitions are compacted, and the results count those left to Spark.
    """

    tables: Annotated[tuple[str, ...], TableNames(("bronze", "keyed"))] = Field((), description="Only these tables.")
    round: Literal["daily", "weekly"] = Field(
        "daily", description="weekly: adds a second round for the remaining partitions."
    )
    minutes: float | None = Field(None, ge=1, description="Minutes of each round; by default as declared.")
    partition: Annotated[str | None, _ONE_PARTITION] = Field(
        None, description="Only this partition of one table, such as event_date=2026-11-01; with force."
    )
    force: Annotated[bool, _ONE_PARTITION] = Field(
        False, description="Rewrite the partition in any case, in Z-order if the table declares it."
    )
    spark: Annotated[bool, ENGINE_SECTION] = Field(
        True, description="Off: only compact small partitions, which needs no Spark."
    )
    dry_run: bool = Field(True, description="Only list the partitions that would be rewritten, and why.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """What OPTIMIZE would do with one table within the time limit, in numbers of partitions.

    `zorder`, `compact` and `compact_small` add up to `partitions`, which a submitted job does (`spark_work_count`).
    `order` says whether Z-order acts, from which size, or why it would skip nothing.
    """

    table: str
    round: str
    partitions: int
    zorder: int
    compact: int
    compact_small: int
    spark_work_count: int
    deferred: int
    files_saved: int
    bytes_rewritten: int
    cost_seconds: float
    order: str
    reason: str


def optimize(context: OperationContext, options: OptimizeOptions) -> Report:
    """Rewrites partitions with OPTIMIZE within the time limit, those with the largest benefit first.

    A repeated run continues where the last one stopped.
    """
    tables = list(options.tables) or None
    if options.force or options.partition:
        return _optimize_partition(context, options)
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


def _optimize_partition(context: OperationContext, options: OptimizeOptions) -> Report:
    from deltaworks.control.clock import utc_now
    from deltaworks.control.job import print_results
    from deltaworks.maintenance.optimize_night import force_partition, optimize_partition, plan_night, read_policy
    from deltaworks.tables.lake import Lake

    if not options.force or not options.partition or len(options.tables) != 1:
        raise ConfigError(
            "OPTIMIZE_PARTITION_INVALID",
            "--partition and --force belong together, and to exactly one table of --tables.",
        )
    (table,) = options.tables
    if not options.dry_run:
        spark = context.spark if options.spark else None
        optimize_partition(spark, context.catalog, context.subject, table, options.partition, report=print_results)
        return Report()
    spec = context.catalog.pipeline(context.subject)
    choice = force_partition(
        Lake(context.catalog.environment.lake), spec, table, options.partition, policy=read_policy(spec), now=utc_now()
    )
    planned = _planned_tables([choice], plan_night([choice], budget_seconds=float("inf")), "forced")
    return Report(parts=[_plan_listing(planned), "Nothing was changed."], results=planned)


def _plan_report(context: OperationContext, options: OptimizeOptions, tables: list[str] | None) -> Report:
    from deltaworks.control.clock import utc_now
    from deltaworks.maintenance.optimize_night import plan_night, read_policy, select_partitions
    from deltaworks.tables.lake import Lake

    spec = context.catalog.pipeline(context.subject)
    policy, upkeep = read_policy(spec), spec.maintenance
    weekly = options.round == "weekly"
    if weekly:
        # The weekly round includes all partitions of the daily round.
        policy = policy.weekly()
    minutes = options.minutes or (upkeep.weekly_minutes if weekly else upkeep.optimize_minutes)
    choices = select_partitions(
        Lake(context.catalog.environment.lake), spec, policy=policy, now=utc_now(), tables=tables
    )
    night = plan_night(choices, budget_seconds=minutes * 60)
    planned = _planned_tables(choices, night, options.round)
    end = f"{night.cost_seconds / 60:,.1f} of {minutes:,.0f} minutes. Nothing was changed."
    return Report(parts=[_plan_listing(planned), end], results=planned)


def _planned_tables(choices: Sequence[TableChoice], night: NightPlan, round_name: str) -> list[PlannedTable]:
    planned = []
    for choice in choices:
        selected = night.selected_partitions(choice.table)
        actions = Counter(partition.action for partition in selected)
        planned.append(
            PlannedTable(
                table=choice.table,
                round=round_name,
                partitions=len(selected),
                zorder=actions["zorder"],
                compact=actions["compact"],
                compact_small=actions["compact_small"],
                spark_work_count=len(selected),
                deferred=len(night.deferred_partitions(choice.table)),
                files_saved=sum(partition.files_saved for partition in selected),
                bytes_rewritten=sum(partition.bytes_rewritten for partition in selected),
                cost_seconds=round(sum(partition.cost_seconds for partition in selected), 3),
                order=choice.order,
                reason=choice.reason,
            )
        )
    return planned


def _plan_listing(planned: Sequence[PlannedTable]) -> Listing:
    columns = ("table", "partitions", "by Spark", "files saved", "MB rewritten", "seconds", "deferred", "Z-order")
    listing = Listing((*columns, "reason"))
    for table in planned:
        listing.add(
            table.table,
            f"{table.partitions:,}",
            f"{table.zorder + table.compact:,}",
            f"{table.files_saved:,}",
            f"{table.bytes_rewritten / 1e6:,.1f}",
            f"{table.cost_seconds:,.0f}",
            f"{table.deferred:,}",
            table.order,
            table.reason,
        )
    return listing


class OrphanOptions(Options):
    """Options of the removal of orphaned files."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze", "keyed"))] = Field((), description="Only these tables.")
    age_hours: int = Field(168, ge=0, description="Minimum age in hours of removed files; a dry run may use less.")
    dry_run: bool = Field(True, description="Only list them.")


def orphans(context: OperationContext, options: OrphanOptions) -> Report:
    """Lists or removes files that no commit references. Idempotent.

    Safe while the stream runs, because only files of a minimum age are removed.
    """
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
    end = ["Nothing was removed. Use --no-dry-run to apply it."] if dry_run else []
    return Report(parts=[listing, *end], results=results)


class ControlTableOptions(Options):
    """Options of the compaction of control tables."""

    dry_run: bool = Field(True, description="Only count.")


def compact_control_tables(context: OperationContext, options: ControlTableOptions) -> Report:
    """Merges small files of control tables and deletes old ones. Idempotent; safe while the stream runs."""
    from deltaworks.maintenance.control_tables import compact_control_tables

    dry_run, _ = apply_nightly_limits(context, dry_run=options.dry_run)
    return Report(results=compact_control_tables(context.catalog, context.subject, dry_run=dry_run))


class ExpiryOptions(Options):
    """Options of the expiry of quarantine and archive."""

    dry_run: bool = Field(True, description="Only count.")


def expire(context: OperationContext, options: ExpiryOptions) -> Report:
    """Removes quarantined rows and archived payloads that are older than declared. Idempotent."""
    from deltaworks.recovery.quarantine.expire import expire_quarantine
    from deltaworks.recovery.quarantine.open_rows import recount_quarantine

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    results = expire_quarantine(context.catalog, context.subject, dry_run=dry_run, limit=bound)
    # Recounted every night, so that a lost summary is restored.
    recount_quarantine(context.catalog.environment.lake, context.subject)
    return Report(results=results)


class LearnOptions(Options):
    """Options of learning the input rate: there are none."""


def learn_input_rate(context: OperationContext, options: LearnOptions) -> Report:
    """Stores a pipeline's usual input for each hour of the day. Idempotent."""
    from deltaworks.maintenance.control_tables import learn_input_rate as learn

    return Report(results=[learn(context.catalog, context.subject)])


class SnapshotOptions(Options):
    """Options of a snapshot."""

    list_folders: bool = Field(False, description="Also find unreferenced files, by listing the folders.")


def snapshot_health(context: OperationContext, options: SnapshotOptions) -> Report:
    """Appends the current health of every table to the snapshot table. Not idempotent: a repeated run adds another
    snapshot.
    """
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
        None, description="lite: by the log alone; full: by listing the folder; by default alternating."
    )
    retention_hours: Annotated[int | None, _SHORT_RETENTION] = Field(
        None, ge=1, description="Retention of unreferenced files in hours; by default as declared. Below 24 only lite."
    )
    allow_below_minimum: Annotated[str | None, _SHORT_RETENTION] = Field(
        None,
        description=(
            "The reason for less than 168 h; written to the tables' logs. It risks that time travel, restores and "
            "queries that began before the retention fail. A table that a stream, a reader or a pin needs is refused."
        ),
    )
    max_files: int | None = Field(None, ge=0, description="Refuse to delete more files than this.")
    spark: Annotated[bool, ENGINE_SECTION] = Field(
        False,
        description="List and delete on Spark's executors. Off: in one process, and tables that need Spark are left.",
    )
    dry_run: bool = Field(True, description="Only list what would be deleted.")


def vacuum(context: OperationContext, options: VacuumOptions) -> Report:
    """Deletes files that neither a retained version nor a reader needs. Idempotent. Older versions become
    unreadable."""
    from deltaworks.maintenance.vacuum import vacuum_tables

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    return Report(
        results=vacuum_tables(
            context.spark if options.spark else None,
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
