"""OPTIMIZE of a pipeline's tables: the partitions that health says are worth it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltaworks.operations.base import Listing, OperationContext, Report
from deltaworks.operations.options import Options, TableNames


class OptimizeOptions(Options):
    """Options of OPTIMIZE."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze",))] = Field((), description="Only these tables.")
    round: Literal["daily", "weekly"] = Field(
        "daily", description="weekly: with a second round over what the daily one leaves."
    )
    minutes: float | None = Field(None, ge=1, description="For each round; without it what the pipeline declares.")
    dry_run: bool = Field(True, description="Only say what would be rewritten, and why.")


def optimize(context: OperationContext, options: OptimizeOptions) -> Report:
    """Rewrite partitions, best first, within the minutes. A repeated run continues where the last one ended."""
    tables = list(options.tables) or None
    if options.dry_run:
        return _plan(context, options, tables)
    from deltaworks.control.job import print_results
    from deltaworks.maintenance.optimize_night import optimize_tables

    optimize_tables(
        context.spark(),
        context.catalog,
        context.subject,
        weekly=options.round == "weekly",
        minutes=options.minutes,
        tables=tables,
        report=print_results,
    )
    return Report()


def _plan(context: OperationContext, options: OptimizeOptions, tables: list[str] | None) -> Report:
    from deltaworks.control.clock import utc_now
    from deltaworks.maintenance.night import plan_night
    from deltaworks.maintenance.survey import policy_of, survey
    from deltaworks.tables.lake import Lake

    spec = context.catalog.pipeline(context.subject)
    policy, upkeep = policy_of(spec), spec.maintenance
    weekly = options.round == "weekly"
    if weekly:
        # The second round takes all that the daily one would.
        policy = policy.weekly()
    minutes = options.minutes or (upkeep.weekly_minutes if weekly else upkeep.optimize_minutes)
    choices = survey(Lake(context.catalog.environment.lake), spec, policy=policy, now=utc_now(), tables=tables)
    night = plan_night(choices, budget_seconds=minutes * 60)
    listing = Listing(("table", "partitions", "files saved", "MB rewritten", "seconds", "put off", "why"))
    for choice in choices:
        taken = night.of(choice.table)
        listing.add(
            choice.table,
            f"{len(taken):,}",
            f"{sum(partition.files_saved for partition in taken):,}",
            f"{sum(partition.bytes_rewritten for partition in taken) / 1e6:,.1f}",
            f"{sum(partition.cost_seconds for partition in taken):,.0f}",
            f"{len(night.put_off_of(choice.table)):,}",
            choice.reason,
        )
    return Report(parts=[listing, f"{night.cost_seconds / 60:,.1f} of {minutes:,.0f} minutes. Nothing was changed."])
