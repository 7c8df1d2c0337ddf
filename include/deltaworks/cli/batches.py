"""`deltaworks batches`: a pipeline's batches from the ledger, including an incomplete one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import listing_command
from deltaworks.control.listing import Cell, Listing, byte_count_cell, count_cell, timestamp_cell
from deltaworks.control.objects import open_objects
from deltaworks.engine.batch_history import BatchDetail, BatchHistory, BatchSummary
from deltaworks.tables.lake import Lake

_MAX_FILES_SHOWN = 50


@listing_command
def batches(
    pipeline: PipelineArgument,
    last: int = typer.Option(20, min=1, help="Number of newest batches."),
    batch_id: int | None = typer.Option(None, "--id", min=0, help="Show all details of one batch."),
) -> list[str | Listing]:
    """List a pipeline's batches: state, rows, offsets, run; with --id one batch with its steps."""
    project = catalog()
    spec, storage = project.pipeline(pipeline), project.environment.lake
    history = BatchHistory(Lake(storage), open_objects(storage), spec)
    if batch_id is not None:
        return _detail(history.detail(batch_id))
    names = ("generation", "batch", "state", "held", "rows", "quarantined", "after", "up to", "prepared", "seconds")
    minor = ("run", "epoch", "generation", "after", "up to")
    listing = Listing((*names, "epoch", "run"), details=("held",), minor=minor)
    for batch in history.recent(last):
        listing.add(*_row(batch))
    return [listing]


def _row(batch: BatchSummary) -> tuple[object, ...]:
    return (
        batch.generation,
        batch.batch_id,
        batch.state,
        Cell(list(batch.held), ", ".join(batch.held)),
        count_cell(batch.rows),
        count_cell(batch.quarantined),
        Cell(batch.start_offset, _offset(batch.start_offset)),
        Cell(batch.end_offset, _offset(batch.end_offset)),
        timestamp_cell(batch.prepared_at),
        None if batch.seconds is None else Cell(batch.seconds, f"{batch.seconds:.1f}"),
        batch.owner_epoch,
        batch.run,
    )


def _offset(offset: Mapping[str, Any] | None) -> str:
    """Formats an offset; an offset of one part is formatted as a number."""
    if offset is None:
        return "-"
    # The log's id is only in the output for programs.
    visible_parts = {name: value for name, value in offset.items() if name != "log"}
    return ", ".join(
        str(value) if len(visible_parts) == 1 else f"{name} {value}" for name, value in visible_parts.items()
    )


def source_facts(source: Mapping[str, Any]) -> dict[str, str]:
    """Formats the recorded facts about a batch's input. Times are arrival times, not event times."""
    facts = {f"source {name}": str(value) for name, value in source.items()}
    # Dropped numbers are only in the output for programs.
    facts.pop("source dropped_sequence_numbers", None)
    if rejected := source.get("rejected"):
        reasons = (f"{events:,} {code}" + (f" at {path}" if path else "") for code, path, events in rejected)
        facts["source rejected"] = ", ".join(reasons)
    return facts


def _detail(batch: BatchDetail) -> list[str | Listing]:
    summary = batch.summary
    facts = {
        "batch": f"{summary.batch_id} of generation {summary.generation} "
        f"(Spark's {batch.spark_batch_id} in checkpoint {batch.checkpoint})",
        "state": summary.state + (f", held: {', '.join(summary.held)}" if summary.held else ""),
        "rows": f"{summary.rows:,} and {summary.quarantined:,} in quarantine",
        "offsets": f"after {_offset(summary.start_offset)} up to {_offset(summary.end_offset)}",
        "prepared": f"{summary.prepared_at} by {summary.run}, owner epoch {summary.owner_epoch}",
        "complete": "not yet" if summary.seconds is None else f"{summary.completed_at} ({summary.seconds:.2f} s later)",
        "spec, code": f"{batch.spec_fingerprint}, {batch.code_version}",
        **source_facts(batch.source),
    }
    batch_listing = Listing(tuple(facts), layout="blocks", title="batch")
    batch_listing.add(*facts.values())
    steps = Listing(("table", "writer", "outcome", "rows", "files", "size", "version", "seconds"), title="steps")
    for step in batch.steps:
        steps.add(
            step.table_name,
            step.writer,
            step.outcome,
            count_cell(step.rows),
            step.files,
            byte_count_cell(step.bytes),
            step.delta_version,
            None if step.seconds is None else Cell(step.seconds, f"{step.seconds:.2f}"),
        )
    files = Listing(("seq", "object", "size"), title="objects")
    for file in batch.files[:_MAX_FILES_SHOWN]:
        files.add(file.seq, file.key, byte_count_cell(file.size))
    cut = len(batch.files) > _MAX_FILES_SHOWN
    return [
        batch_listing,
        steps,
        files,
        *([f"(the first {_MAX_FILES_SHOWN} of {len(batch.files)} objects)"] if cut else []),
    ]
