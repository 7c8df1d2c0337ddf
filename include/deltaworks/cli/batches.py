"""`deltaworks batches`: a pipeline's batches from the ledger, one that is not complete yet among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.control.objects import open_objects
from deltaworks.engine.history import BatchDetail, BatchHistory, BatchSummary
from deltaworks.operations.base import readable_bytes
from deltaworks.tables.lake import Lake

_FILES_SHOWN = 50


def batches(
    pipeline: str,
    last: int = typer.Option(20, min=1, help="How many of the newest batches."),
    batch_id: int | None = typer.Option(None, "--id", min=0, help="One batch with all that is on record of it."),
) -> None:
    """List a pipeline's batches: state, rows, offsets, who ran them; with --id one of them and its steps."""
    project = catalog()
    spec, storage = project.pipeline(pipeline), project.environment.lake
    history = BatchHistory(Lake(storage), open_objects(storage), spec)
    if batch_id is not None:
        _show(history.detail(batch_id))
        return
    listing = Table(
        *("generation", "batch", "state", "held", "rows", "quarantined", "after", "up to", "prepared", "seconds"),
        *("epoch", "run"),
    )
    for batch in history.recent(last):
        listing.add_row(*_row(batch))
    console.print(listing)


def _row(batch: BatchSummary) -> tuple[str, ...]:
    return (
        str(batch.generation),
        str(batch.batch_id),
        batch.state,
        ", ".join(batch.held),
        f"{batch.rows:,}",
        f"{batch.quarantined:,}",
        _offset(batch.start_offset),
        _offset(batch.end_offset),
        f"{batch.prepared_at:%Y-%m-%d %H:%M:%S}" if batch.prepared_at else "",
        "" if batch.seconds is None else f"{batch.seconds:.1f}",
        str(batch.owner_epoch),
        batch.run,
    )


def _offset(offset: Mapping[str, Any] | None) -> str:
    """An offset as people say it: the bare number where it has one part."""
    if offset is None:
        return "-"
    # Which log a number is of, matters to programs.
    shown = {name: value for name, value in offset.items() if name != "log"}
    return ", ".join(str(value) if len(shown) == 1 else f"{name} {value}" for name, value in shown.items())


def _show(batch: BatchDetail) -> None:
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
        **{f"source {name}": str(value) for name, value in batch.source.items()},
    }
    for name, value in facts.items():
        console.print(f"{name:<26}{value}", highlight=False, markup=False)
    steps = Table("table", "writer", "outcome", "rows", "files", "size", "version", "seconds")
    for step in batch.steps:
        steps.add_row(
            step.table_name,
            step.writer,
            step.outcome,
            f"{step.rows:,}",
            str(step.files),
            readable_bytes(step.bytes),
            "" if step.delta_version is None else str(step.delta_version),
            "" if step.seconds is None else f"{step.seconds:.2f}",
        )
    console.print(steps)
    files = Table("seq", "object", "size")
    for file in batch.files[:_FILES_SHOWN]:
        files.add_row(str(file.seq), file.key, readable_bytes(file.size))
    console.print(files)
    if len(batch.files) > _FILES_SHOWN:
        console.print(f"(the first {_FILES_SHOWN} of {len(batch.files)} objects)")
