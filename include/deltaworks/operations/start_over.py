"""Starting a pipeline over: its tables are recreated, and its source is read from the beginning."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from deltaworks.operations.base import Listing, OperationContext, Report, readable_bytes
from deltaworks.operations.options import Options


class StartOverOptions(Options):
    """Options of a start over."""

    max_rows: int | None = Field(None, ge=0, description="Refuse to give up more rows than this; needed to do it.")
    reason: str | None = Field(None, description="Kept on record.")
    dry_run: bool = Field(True, description="Only count what would be given up.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOverSummary:
    """The rows that are lost: `rows_out` bounds how many a start over may remove."""

    pipeline: str
    dry_run: bool
    rows_out: int
    summary: str


def start_over(context: OperationContext, options: StartOverOptions) -> Report:
    """Begin a new generation. The stream has to be stopped. A repeated run continues where a killed one ended."""
    from deltaworks.rework.start_over import start_over as perform

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
        counts = (f"{table.rows:,}", f"{table.files:,}", readable_bytes(table.bytes))
        listing.add(table.table, *counts, table.version)
    parts: list[str | Listing] = [listing]
    if result.resumed:
        parts.append("It had been begun before, and is gone on with as it was begun.")
    parts.append(f"Generation {result.generation} begins with batch {result.first_batch}.")
    if options.dry_run:
        parts.append(
            f"Nothing was changed. Objects that are gone: `deltaworks reprocess {pipeline} --from-start --exact`.\n"
            f"To do it: deltaworks pipelines start-over {pipeline} --max-rows {result.rows} --no-dry-run"
        )
    else:
        hours = context.catalog.pipeline(pipeline).maintenance.vacuum_retention_hours
        parts.append(
            f"{result.recreated} tables were recreated now. Their rows are readable by time travel until a VACUUM that "
            f"comes {hours} h or more after this.\nThe next start reads the source from the beginning: "
            f"deltaworks start {pipeline}"
        )
    lines = [f"{table.table}: {table.rows} rows" for table in result.tables]
    summary = StartOverSummary(
        pipeline=pipeline,
        dry_run=options.dry_run,
        rows_out=result.rows,
        summary="; ".join([*lines, f"generation {result.generation} reads the source from its beginning"]),
    )
    return Report(parts=parts, results=[summary])
