"""Mutations of landed rows: applies waiting requests, and purges rows deleted long ago."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.operations.base import Look, OperationContext, Report
from deltaworks.operations.maintenance import apply_nightly_limits
from deltaworks.operations.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from deltaworks.control.records.mutation import MutationCompletion
    from deltaworks.mutations.forecast import Forecast
    from deltaworks.specs.catalog import Catalog

_NO_REQUESTS = "No requests since the last batch."


class MutateOptions(Options):
    """Options of a run of mutations."""

    org: str | None = Field(None, description="Only requests of this organisation, ahead of all others.")
    everything: bool = Field(False, description="Compare all rows with all requests, including applied ones.")
    dry_run: bool = Field(True, description="Only list the rows that would change.")
    spark: bool = Field(True, description="Apply large batches with Spark; off leaves them to another run.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBatch:
    """A mutation batch of a run.

    Args:
        engine: what resolved its requests and merged its rows.
        seconds: its duration; the stream could not write a table for `pause_seconds`.
        spark_work_count: 1 for a batch that this run left to one with Spark, for `reason`.
    """

    batch: int
    pipeline: str
    outcome: str
    requests: int = 0
    rows: int = 0
    files: int = 0
    engine: str = ""
    seconds: float = 0.0
    pause_seconds: float = 0.0
    reason: str = ""
    spark_work_count: int = 0

    @classmethod
    def of(cls, end: MutationCompletion) -> AppliedBatch:
        """Returns a completed batch."""
        merged_by = sorted({table.engine for table in end.tables} - {""})
        return cls(
            batch=end.number,
            pipeline=end.pipeline,
            outcome=end.outcome,
            requests=sum(end.requests.values()) + end.invalid_requests,
            rows=end.rows,
            files=sum(table.files_removed for table in end.tables),
            engine=", merged by ".join(part for part in (end.engine, " and ".join(merged_by)) if part),
            seconds=round(sum(end.seconds.values()), 3),
            pause_seconds=end.pause_seconds,
        )


def mutate(context: OperationContext, options: MutateOptions) -> Report:
    """Applies mutation requests batch by batch. An interrupted batch is completed first."""
    if options.dry_run:
        from deltaworks.mutations.forecast import forecast
        from deltaworks.tables.rewrite import SparkRequiredError

        try:
            forecasted = forecast(
                context.spark if options.spark else None,
                context.catalog,
                context.subject,
                organisation=options.org,
                everything=options.everything,
            )
        except SparkRequiredError as error:
            return Report(parts=[f"The batch needs Spark: {error}. Count with Spark."], exit_code=1)
        return Report(parts=[_NO_REQUESTS]) if forecasted is None else _forecast_report(forecasted)
    from deltaworks.control.objects import open_objects
    from deltaworks.control.summaries.base import log_failures
    from deltaworks.control.summaries.jobs import record_batches
    from deltaworks.lineage.runs import batch_lineage
    from deltaworks.mutations.apply import MutationRun

    with batch_lineage(context.catalog, context.subject, "mutations") as lineage:
        result = MutationRun(context.spark if options.spark else None, context.catalog, context.subject).run(
            organisation=options.org, everything=options.everything
        )
        ends = [*result.completed, *result.batches]
        for table in (table for end in ends for table in end.tables):
            lineage.add(table.table, table.rows)
    with log_failures(f"The summary of the mutations of {context.subject}"):
        record_batches(open_objects(context.catalog.environment.lake), context.subject, ends)
    results = [AppliedBatch.of(end) for end in ends]
    parts: list[str | Listing] = [batch_listing(ends)] if ends else []
    if result.spark_reason:
        remaining = AppliedBatch(
            batch=0, pipeline=context.subject, outcome="left to Spark", reason=result.spark_reason, spark_work_count=1
        )
        results.append(remaining)
        parts.append(f"A batch needs Spark: {result.spark_reason}. A run with Spark completes it.")
    elif not results:
        results.append(AppliedBatch(batch=0, pipeline=context.subject, outcome="nothing", reason=_NO_REQUESTS))
    return Report(parts=parts or [_NO_REQUESTS], results=results)


def look(context: OperationContext, options: MutateOptions) -> Look:
    """Tells whether a scheduled run has a batch to complete or to begin. Writes nothing."""
    from deltaworks.control.home import PipelineHome
    from deltaworks.control.objects import open_objects
    from deltaworks.mutations.bounds import BatchPlanner
    from deltaworks.tables.lake import Lake

    storage = context.catalog.environment.lake
    objects = open_objects(storage)
    home = PipelineHome(objects, context.subject)
    home.start_overs.reject_unfinished()
    begun, ended = home.mutations.numbers()
    if begun > ended:
        return Look(work=1, reason=f"batch {begun} has not ended")
    planner = BatchPlanner(Lake(storage), objects, context.catalog.pipeline(context.subject))
    planned = planner.plan_batch(ended + 1, max_versions=planner.current_versions())
    return Look(work=int(planned is not None), reason=_NO_REQUESTS.rstrip(".") if planned is None else "requests wait")


def look_at_backlogs(catalog: Catalog, *, now: datetime | None = None) -> Look:
    """Tells whether requests of a pipeline are overdue, and records all backlogs."""
    from deltaworks.control.clock import utc_now
    from deltaworks.errors import TransientError
    from deltaworks.mutations.backlog_check import read_backlogs, record_backlogs, reject_overdue

    backlogs, now = read_backlogs(catalog), now or utc_now()
    record_backlogs(catalog, backlogs, now=now)
    try:
        reject_overdue(catalog, backlogs, now=now)
    except TransientError as error:
        return Look(work=1, reason=error.message)
    return Look(work=0, reason="no request waits too long", results=backlogs)


def batch_listing(ends: Sequence[MutationCompletion]) -> Listing:
    """Lists completed mutation batches, one per row."""
    listing = Listing(("batch", "outcome", "engine", "ended", "requests", "rows", "files", "pause s", "seconds"))
    for end in ends:
        requests = ", ".join(f"{count:,} {kind}" for kind, count in sorted(end.requests.items()))
        refused = f", {end.invalid_requests:,} not understood" if end.invalid_requests else ""
        files = sum(table.files_removed for table in end.tables)
        counts = (f"{requests}{refused}", f"{end.rows:,}", f"{files:,}", f"{end.pause_seconds:.1f}")
        listing.add(end.number, end.outcome, end.engine, end.at, *counts, f"{sum(end.seconds.values()):.1f}")
    return listing


def _forecast_report(forecast: Forecast) -> Report:
    unfinished = ", which was begun and has not ended" if forecast.unfinished else ""
    requests = Listing(("operation", "requests"))
    for kind, count in sorted(forecast.requests.items()):
        requests.add(kind, f"{count:,}")
    if forecast.invalid_requests:
        requests.add("not understood", f"{forecast.invalid_requests:,}")
    touched = Listing(("table", "rows", "files", "of files", "partitions"))
    for table in forecast.tables:
        counts = (table.rows, table.files, table.total_files, table.partitions)
        touched.add(table.table, *(f"{count:,}" for count in counts))
    return Report(
        parts=[
            f"Batch {forecast.batch_number}{unfinished}: requests of {forecast.organisations:,} organisations.",
            requests,
            f"{forecast.chains:,} chains, the longest of {forecast.longest_chain:,} moves; "
            f"{forecast.components:,} components, the largest of {forecast.largest_component:,} ids.",
            touched,
            "Nothing was changed. Use --no-dry-run to apply it.",
        ],
        results=[forecast],
    )


class PurgeOptions(Options):
    """Options of a purge."""

    dry_run: bool = Field(True, description="Only count the rows.")


def purge(context: OperationContext, options: PurgeOptions) -> Report:
    """Deletes rows that were marked as deleted longer ago than declared. Cannot be undone. Idempotent."""
    from deltaworks.mutations.apply import purge_deleted

    dry_run, bound = apply_nightly_limits(context, dry_run=options.dry_run)
    results = purge_deleted(context.spark(), context.catalog, context.subject, dry_run=dry_run, deletion_limit=bound)
    return Report(results=results)
