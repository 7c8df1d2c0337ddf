"""Registers the tables of a pipeline in the environment's catalogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltaworks.catalogs.sync import SyncResult
    from deltaworks.specs.environment_sections import HiveCatalogSpec


class SyncOptions(Options):
    """Options of the synchronisation of catalogs."""

    catalogs: tuple[str, ...] = Field((), description="Only these catalogs; by default all of the environment.")
    drop: bool = Field(False, description="Also drop entries of tables that no longer exist. No data are deleted.")
    dry_run: bool = Field(False, description="Only compare.")


def sync(context: OperationContext, options: SyncOptions) -> Report:
    """Registers new tables, updates changed entries, and drops entries if requested or declared. Idempotent.

    Raises:
        DeltaworksError: of the first catalog that failed; the others are synchronised.
    """
    from deltaworks.catalogs.sync import sync_pipeline

    def open_session(spec: HiveCatalogSpec) -> SparkSession:
        return _hive_session(context, spec)

    results = sync_pipeline(
        context.catalog,
        context.subject,
        names=options.catalogs,
        drop=True if options.drop else None,
        dry_run=options.dry_run,
        open_session=open_session,
    )
    errors = [result.error for result in results if result.error is not None]
    report = Report(
        parts=[*_summaries(results, options), _listing(results)],
        results=[change for result in results for change in result.changes],
    )
    if errors:
        for line in _summaries(results, options):
            context.echo(line)
        # Each failing catalog has an alert of its own.
        raise errors[0]
    return report


def _hive_session(context: OperationContext, spec: HiveCatalogSpec) -> SparkSession:
    """Returns a Spark session with Hive support, which is a static setting: this process has no other session."""
    from deltaworks.catalogs.hive import hive_settings
    from deltaworks.tables.spark_session import build_session

    environment = context.catalog.environment
    spark = environment.spark.model_copy(update={"conf": {**environment.spark.conf, **hive_settings(spec)}})
    return build_session(environment.model_copy(update={"spark": spark}), app_name=f"sync_catalogs.{context.subject}")


def _summaries(results: Sequence[SyncResult], options: SyncOptions) -> list[str]:
    if not results:
        return ["The environment declares no catalog for this pipeline."]
    lines = []
    for result in results:
        changed = sum(change.applied for change in result.changes)
        pending = len(result.pending)
        rest = f", {pending:,} to change" if pending else ""
        if pending and not options.dry_run:
            rest = f"; {pending:,} entries of tables that no longer exist stay: drop them with --drop"
        outcome = f"{len(result.changes):,} entries, {changed:,} changed{rest}"
        lines.append(f"{result.catalog}: {outcome if result.error is None else result.error.message}")
    return lines


def _listing(results: Sequence[SyncResult]) -> Listing:
    listing = Listing(("catalog", "table", "action", "applied", "what differs"))
    for result in results:
        for change in result.changes:
            if change.action != "none":
                is_applied = "yes" if change.applied else "no"
                listing.add(change.catalog, change.table, change.action, is_applied, change.difference)
    return listing
