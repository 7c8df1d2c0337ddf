"""Builds gold tables: partitions changed by new data, or complete tables in shadows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional, TableNames


class BuildOptions(Options):
    """Options of a build."""

    tables: Annotated[tuple[str, ...], TableNames(("gold",))] = Field((), description="Only these gold tables.")
    dates: str | None = Field(
        None, description=("Only these dates: 2026-01-01..2026-01-07, or separated by commas; by default changed ones.")
    )
    full: bool = Field(False, description="Build all partitions, changed or not.")
    spark: bool = Field(True, description="Off: only list the partitions to build, without Spark.")


def build(context: OperationContext, options: BuildOptions) -> Report:
    """Updates gold tables. Idempotent; safe while inputs are appended."""
    from deltaworks.gold.build import rebuild_gold
    from deltaworks.gold.plan import parse_dates
    from deltaworks.gold.refresh import pending_gold

    dates = parse_dates(options.dates) if options.dates else None
    tables = list(options.tables) or None
    if not options.spark:
        return Report(
            results=pending_gold(context.catalog, context.subject, tables=tables, full=options.full, dates=dates)
        )
    from deltaworks.lineage.runs import batch_lineage

    with batch_lineage(context.catalog, context.subject, "gold") as lineage:
        result = rebuild_gold(
            context.spark(), context.catalog, context.subject, tables=tables, full=options.full, dates=dates
        )
        for table in result.tables:
            if table.version is not None:
                lineage.add(table.table, table.rows)
    return Report(results=result.tables)


class RefreshOptions(Options):
    """Options of a refresh."""

    tables: Annotated[tuple[str, ...], Positional(), TableNames(("gold",))] = Field(
        (), description="Only these gold tables."
    )
    dry_run: bool = Field(True, description="Only list the tables that would be swapped.")


def refresh(context: OperationContext, options: RefreshOptions) -> Report:
    """Builds complete gold tables in shadow tables and swaps them in. Readers see the old table or the new one."""
    tables = list(options.tables) or None
    if not options.dry_run:
        from deltaworks.gold.refresh import refresh_gold
        from deltaworks.lineage.runs import batch_lineage

        with batch_lineage(context.catalog, context.subject, "gold") as lineage:
            refreshed = refresh_gold(context.spark(), context.catalog, context.subject, tables=tables, dry_run=False)
            for table in refreshed:
                if table.swapped:
                    lineage.add(table.table, table.rows)
        return Report(results=refreshed)
    from deltaworks.gold.refresh import plan_refresh

    planned = plan_refresh(context.catalog, context.subject, tables=tables)
    listing = Listing(("table", "rows now", "MB now", "inputs now", "shadow", "what"))
    for table in planned:
        inputs = ", ".join(f"{name}@{version}" for name, version in table.built_from.items())
        size = f"{table.bytes_before / 1e6:,.1f}"
        listing.add(table.table, f"{table.rows_before:,}", size, inputs, table.shadow, table.reason)
    return Report(parts=[listing, "Nothing was changed. Use --no-dry-run to build, check and swap."], results=planned)
