"""`deltaworks files`: the state of objects, from the bucket to the tables."""

from __future__ import annotations

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import CommandOutput, listing_command
from deltaworks.control.listing import Cell, Listing, byte_count_cell, timestamp_cell
from deltaworks.engine.object_status import ObjectStatus, ObjectStatusReader, PipelineOutcome
from deltaworks.errors import ContractError

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
