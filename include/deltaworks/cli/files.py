"""`deltaworks files`: what became of objects, from the bucket to the tables."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.engine.file_answers import FileAnswer, FileAnswers, Reading
from deltaworks.operations.base import readable_bytes

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_files(
    relay: str,
    last: int = typer.Option(20, min=1, max=10_000, help="How many of the newest."),
    bucket: str = typer.Option("", help="Only objects of this bucket."),
    glob: str = typer.Option("", help="Only objects whose key fits, such as 'games/**/*.gz'."),
) -> None:
    """List the newest objects in a relay's file event log, and which batch of each pipeline has read them."""
    answers = FileAnswers(catalog(), relay)
    listing = Table("seq", "object", "size", "by", "received", "read by")
    for answer in answers.newest(last, bucket=bucket or None, glob=glob or None):
        event = answer.event
        listing.add_row(
            str(event["seq"]),
            f"{event['bucket']}/{event['key']}",
            readable_bytes(event["size"] or 0),
            event["origin"] or "-",
            f"{event['received_at']:%Y-%m-%d %H:%M:%S}" if event["received_at"] else "-",
            ", ".join(map(_read_by, answer.readings)) or "no pipeline",
        )
    console.print(listing)


@app.command()
def show(relay: str, key: str, bucket: str = typer.Option("", help="Where several buckets have the key.")) -> None:
    """Show what became of one object, or why it was not read."""
    project = catalog()
    answers = FileAnswers(project, project.relay(relay).relay)
    object_answers = answers.about(key, bucket=bucket or None)
    for answer in object_answers:
        _show(answer)
    for message in answers.messages_about(key):
        console.print(
            f"A message that names it is in the message quarantine ({message['reason']}) since "
            f"{message['received_at']}: deltaworks files redrive {relay}.",
            highlight=False,
        )
    if not object_answers:
        console.print(
            f"{key} is in no file event of {relay}: no notification announced it, or the key is spelled differently."
        )
        console.print(f"deltaworks files reconcile {relay} --prefix '{key}' says whether it lies in the bucket.")


def _read_by(reading: Reading) -> str:
    return f"{reading.pipeline} {'waits' if reading.batch_id is None else f'batch {reading.batch_id}'}"


def _show(answer: FileAnswer) -> None:
    event = answer.event
    facts = {
        "object": f"{event['bucket']}/{event['key']}, {event['size']} bytes, etag {event['etag']}",
        "version": event["version_id"] or "-",
        "made": f"{event['event_time']} ({event['event_name']})",
        "seen": f"{event['received_at']} by {event['origin']}"
        + (f", message {event['message_id']}" if event["message_id"] else ""),
        "logged": f"seq {event['seq']}, append {event['batch']}",
    }
    for name, value in facts.items():
        console.print(f"{name:<10}{value}", highlight=False, markup=False)
    for reading in answer.readings:
        console.print(f"{'read by':<10}{_outcome(reading)}", highlight=False, markup=False)
    if not answer.readings:
        console.print(f"{'read by':<10}no pipeline: none declares its place")


def _outcome(reading: Reading) -> str:
    if reading.batch_id is None:
        return f"{reading.pipeline}: not yet"
    if reading.whole is not None:
        return f"{reading.pipeline} in batch {reading.batch_id}: nothing, {reading.whole}"
    rows = ", ".join(f"{count} in {table}" for table, count in reading.rows.items()) or "no rows"
    rejected = "".join(f", {count} {reason}" for reason, count in reading.rejected.items())
    return f"{reading.pipeline} in batch {reading.batch_id}: {rows}" + (
        f"; in quarantine{rejected}" if rejected else ""
    )
