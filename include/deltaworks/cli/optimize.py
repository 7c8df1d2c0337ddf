"""`deltaworks optimize`: what a night would rewrite and why, and the night by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.control.clock import utc_now
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(optimize)


def optimize(
    pipeline: str,
    tables: str = typer.Option("", help="Names of tables with commas between; empty for all."),
    weekly: bool = typer.Option(False, help="With the second round, over what the daily one leaves."),
    minutes: float = typer.Option(0.0, help="For each round; by default what the pipeline declares."),
    dry_run: bool = typer.Option(True, help="Say what would be rewritten and why; --no-dry-run rewrites it."),
) -> None:
    """Rewrite the partitions that health says are worth it. Says first which, and why not the others."""
    project = catalog()
    project.pipeline(pipeline)
    names = tables.split(",") if tables else None
    if dry_run:
        _show_plan(project, pipeline, names, weekly=weekly, minutes=minutes or None)
        return
    from deltaworks.control.job import print_results
    from deltaworks.maintenance.optimize_night import optimize_tables
    from deltaworks.tables.spark.session import build_session

    spark = build_session(project.environment, app_name=f"optimize_tables.{pipeline}")
    optimize_tables(
        spark, project, pipeline, weekly=weekly, minutes=minutes or None, tables=names, report=print_results
    )


def _show_plan(
    project: Catalog, pipeline: str, tables: list[str] | None, *, weekly: bool, minutes: float | None
) -> None:
    from deltaworks.maintenance.night import plan_night
    from deltaworks.maintenance.survey import policy_of, survey

    spec = project.pipeline(pipeline)
    policy, upkeep = policy_of(spec), spec.maintenance
    if weekly:
        # The second round takes all that the daily one would.
        policy = policy.weekly()
    length = minutes or (upkeep.weekly_minutes if weekly else upkeep.optimize_minutes)
    found = survey(Lake(project.environment.lake), spec, policy=policy, now=utc_now(), tables=tables)
    night = plan_night(found, budget_seconds=length * 60)
    listing = Table("table", "partitions", "files saved", "MB rewritten", "seconds", "put off", "why")
    for choice in found:
        taken = night.of(choice.table)
        listing.add_row(
            choice.table,
            f"{len(taken):,}",
            f"{sum(each.files_saved for each in taken):,}",
            f"{sum(each.bytes_rewritten for each in taken) / 1e6:,.1f}",
            f"{sum(each.cost_seconds for each in taken):,.0f}",
            f"{len(night.put_off_of(choice.table)):,}",
            choice.reason,
        )
    console.print(listing)
    console.print(f"{night.cost_seconds / 60:,.1f} of {length:,.0f} minutes. Nothing was changed.")
