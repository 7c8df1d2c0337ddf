"""`deltaworks files`, `batches` and `quarantine`: objects from the bucket to the tables, the ledger's batches (also an
incomplete one), and the rows that were rejected. The replay command is derived from its operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.operations import query_command
from deltaworks.cli.output import CommandOutput, listing_command
from deltaworks.control.listing import Cell, Listing, byte_count_cell, count_cell, timestamp_cell
from deltaworks.control.objects import open_objects
from deltaworks.engine.batch_history import BatchDetail, BatchHistory, BatchSummary
from deltaworks.engine.object_status import ObjectStatus, ObjectStatusReader, PipelineOutcome
from deltaworks.errors import ContractError
from deltaworks.operations.replay import list_rows, show_rows
from deltaworks.tables.lake import Lake

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@listing_command
def list_files(
    relay: str,
    last: int = typer.Option(20, min=1, max=10_000, help="Number of newest objects."),
    bucket: str = typer.Option("", help="Only objects of this bucket."),
    glob: str = typer.Option("", help="Only objects whose key matches, such as 'games/**/*.gz'."),
) -> Listing:
    """List the newest objects in a relay's file event log, and the batch of each pipeline that has read them."""
    answers = ObjectStatusReader(catalog(), relay)
    listing = Listing(("seq", "object", "size", "by", "received", "read by"))
    for answer in answers.newest_events(last, bucket=bucket or None, glob=glob or None):
        event = answer.event
        listing.add(
            event["seq"],
            f"{event['bucket']}/{event['key']}",
            byte_count_cell(event["size"] or 0),
            event["origin"] or "-",
            timestamp_cell(event["received_at"], default="-"),
            Cell(
                {reading.pipeline: reading.batch_id for reading in answer.outcomes},
                ", ".join(map(_reader_text, answer.outcomes)) or "no pipeline",
            ),
        )
    return listing


@app.command()
@listing_command
def show(
    relay: str, key: str, bucket: str = typer.Option("", help="Bucket, if several have the key.")
) -> CommandOutput:
    """Show the state of one object, or why it was not read; exits with 11 if it is unknown."""
    project = catalog()
    answers = ObjectStatusReader(project, project.relay(relay).relay)
    statuses = answers.by_key(key, bucket=bucket or None)
    parts: list[str | Listing] = [_object_facts(answer) for answer in statuses]
    for message in answers.quarantined_messages(key):
        parts.append(
            f"A message that names it is in the message quarantine ({message['reason']}) since "
            f"{message['received_at']}: deltaworks files redrive {relay}."
        )
    if not statuses:
        parts.append(
            f"{key} is in no file event of {relay}: no notification announced it, or the key is spelled differently."
        )
        parts.append(f"deltaworks files reconcile {relay} --prefix '{key}' checks whether it is in the bucket.")
    return CommandOutput(parts, exit_code=0 if len(parts) > 2 or statuses else ContractError.exit_code)


def _reader_text(reading: PipelineOutcome) -> str:
    return f"{reading.pipeline} {'pending' if reading.batch_id is None else f'batch {reading.batch_id}'}"


def _object_facts(answer: ObjectStatus) -> Listing:
    event = answer.event
    facts = {
        "object": f"{event['bucket']}/{event['key']}, {event['size']} bytes, etag {event['etag']}",
        "version": event["version_id"] or "-",
        "created": f"{event['event_time']} ({event['event_name']})",
        "received": f"{event['received_at']} by {event['origin']}"
        + (f", message {event['message_id']}" if event["message_id"] else ""),
        "logged": f"seq {event['seq']}, append {event['batch']}",
    }
    read = {f"read by {reading.pipeline}": _outcome(reading) for reading in answer.outcomes}
    facts |= read or {"read by": "no pipeline: no source matches it"}
    listing = Listing(tuple(facts), layout="blocks")
    listing.add(*facts.values())
    return listing


def _outcome(reading: PipelineOutcome) -> str:
    if reading.batch_id is None:
        return "not yet"
    if reading.object_error is not None:
        return f"in batch {reading.batch_id}: nothing, {reading.object_error}"
    rows = ", ".join(f"{count} in {table}" for table, count in reading.rows.items()) or "no rows"
    rejected = "".join(f", {count} {reason}" for reason, count in reading.rejected.items())
    return f"in batch {reading.batch_id}: {rows}" + (f"; in quarantine{rejected}" if rejected else "")


quarantine_app = typer.Typer(no_args_is_help=True)
quarantine_app.command("list")(query_command(list_rows))
quarantine_app.command("show")(query_command(show_rows))


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
