"""The upkeep of a night that needs no Spark: orphans, control tables, usual input, snapshots of health."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.operations.base import Listing, OperationContext, Report, readable_bytes
from deltaworks.operations.options import Options, TableNames


class OrphanOptions(Options):
    """Options of the removal of orphans."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze",))] = Field((), description="Only these tables.")
    age_hours: int = Field(168, ge=0, description="Leave younger files alone; a list may look at younger ones.")
    dry_run: bool = Field(True, description="Only list them.")


def orphans(context: OperationContext, options: OrphanOptions) -> Report:
    """List, or remove, files that no commit names. Idempotent; safe beside the stream for files of that age."""
    from deltaworks.maintenance.orphans import remove_orphans

    results = remove_orphans(
        context.catalog,
        context.subject,
        dry_run=options.dry_run,
        age_hours=options.age_hours,
        tables=list(options.tables) or None,
    )
    listing = Listing(("what", "files", "size", "oldest", ""))
    for result in results:
        listing.add(result.what, f"{result.files:,}", readable_bytes(result.bytes), result.oldest, result.reason)
    end = ["Nothing was removed: --no-dry-run does it."] if options.dry_run else []
    return Report(parts=[listing, *end], results=results)


class ControlTableOptions(Options):
    """Options of the compaction of control tables."""

    dry_run: bool = Field(True, description="Only count.")


def control_tables(context: OperationContext, options: ControlTableOptions) -> Report:
    """Merge small files of control tables and delete old ones. Idempotent; safe beside the stream."""
    from deltaworks.maintenance.control_tables import keep_control_tables

    return Report(results=keep_control_tables(context.catalog, context.subject, dry_run=options.dry_run))


class LearnOptions(Options):
    """Learning the usual input takes no options."""


def learn_input(context: OperationContext, options: LearnOptions) -> Report:
    """Keep how much input each hour of the day usually has. Idempotent."""
    from deltaworks.maintenance.learn_norm import learn_input as learn

    return Report(results=[learn(context.catalog, context.subject)])


class SnapshotOptions(Options):
    """Options of a snapshot."""

    list_folders: bool = Field(False, description="Also look for files that nothing needs, by listing the folders.")


def snapshot_health(context: OperationContext, options: SnapshotOptions) -> Report:
    """Append the health of every table as it is now. Two snapshots at once are both kept."""
    from deltaworks.maintenance.table_health.record import snapshot_tables

    return Report(results=snapshot_tables(context.catalog, pipeline=context.subject, list_folders=options.list_folders))
