"""`deltaworks files`: what became of objects, from the bucket to the tables."""

from __future__ import annotations

import getpass

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.cli.sizes import readable_bytes
from deltaworks.control.objects import open_objects
from deltaworks.engine.file_answers import FileAnswer, FileAnswers, Reading
from deltaworks.errors import ConfigError
from deltaworks.rework.clean import MOST_OBJECTS, clean_source
from deltaworks.sources.objects.relay import reconcile as reconciling
from deltaworks.sources.objects.relay import redrive as redriving
from deltaworks.sources.objects.relay.lister import request_listing
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.base import resolve_text
from deltaworks.tables.lake import Lake

app = typer.Typer(
    help="Objects: seen when and by whom, in which batch, how many rows, or why not.", no_args_is_help=True
)

_SHOWN = 20


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
    """Say what became of one object, or why nothing has."""
    project = catalog()
    answers = FileAnswers(project, project.relay(relay).relay)
    found = answers.about(key, bucket=bucket or None)
    for answer in found:
        _show(answer)
    for message in answers.messages_about(key):
        console.print(
            f"A message that names it is in the message quarantine ({message['reason']}) since "
            f"{message['received_at']}: deltaworks files redrive {relay}.",
            highlight=False,
        )
    if not found:
        console.print(f"{key} is in no file event of {relay}: nobody was told of it, or the key is written otherwise.")
        console.print(f"deltaworks files reconcile {relay} --prefix '{key}' says whether it lies in the bucket.")


@app.command()
def reconcile(
    relay: str,
    prefix: str = typer.Option("", help="Only keys that begin so."),
    dry_run: bool = typer.Option(
        True, help="Only compare; --no-dry-run has the relay list its buckets and take in what it lacks."
    ),
) -> None:
    """Compare a relay's buckets with its log: objects nobody was told of, and objects gone before they were read."""
    project = catalog()
    spec, environment = project.relay(relay), project.environment
    readers = FileAnswers(project, relay).readers()
    found = reconciling.reconcile(spec, Lake(environment.lake), environment.landing, readers, prefix=prefix)
    console.print(
        f"{found.listed:,} objects listed, {found.logged:,} file events in the log: {len(found.unannounced):,} that "
        f"nobody was told of, {found.young:,} that may still be announced, {len(found.gone):,} gone before they "
        "were read."
    )
    for title, names in (("not announced", found.unannounced), ("gone", found.gone)):
        for name in names[:_SHOWN]:
            console.print(f"  {title}: {name}", markup=False, highlight=False)
        if len(names) > _SHOWN:
            console.print(f"  ... and {len(names) - _SHOWN:,} more")
    if dry_run:
        return
    if spec.listing is None:
        raise ConfigError(
            "RELAY_LISTS_NOTHING",
            f"Relay {relay!r} declares no `listing`, so it takes in nothing but messages.",
            hint=f"Declare `listing: {{}}` in include/relays/{relay}.yaml, restart it, and ask again.",
        )
    request_listing(open_objects(environment.lake), relay, by=getpass.getuser())
    console.print(f"Asked {relay} to list its buckets; `deltaworks status` shows whether it runs.")


@app.command()
def redrive(
    relay: str,
    limit: int = typer.Option(10_000, min=1, help="At most so many messages of each kind."),
    dry_run: bool = typer.Option(True, help="Only count; --no-dry-run puts them back into the queue."),
) -> None:
    """Put dead letters, and quarantined messages that can be used now, back into the relay's queue."""
    project = catalog()
    spec = project.relay(relay)
    if spec.queue_url is None:
        raise ConfigError(
            "RELAY_WITHOUT_QUEUE", f"Relay {relay!r} reads no queue.", hint="Objects it missed: files reconcile."
        )
    queue = NotificationQueue(project.environment.messaging, resolve_text(spec.queue_url), wait_seconds=1)
    result = redriving.redrive(spec, Lake(project.environment.lake), queue, dry_run=dry_run, limit=limit)
    dead = "no dead-letter queue" if result.dead_letters is None else f"about {result.dead_letters:,} dead letters"
    console.print(
        f"{dead}; {result.quarantined:,} quarantined messages: {result.usable:,} can be used now, "
        f"{result.landed:,} hold nothing new, {sum(result.reasons.values()):,} still cannot be used."
    )
    if result.reasons:
        console.print("  still: " + ", ".join(f"{name} {count:,}" for name, count in result.reasons.most_common()))
    if dry_run:
        console.print("Nothing was sent: --no-dry-run does it.")
    else:
        console.print(f"Put back: {result.dead_letters_moved:,} dead letters, {result.sent:,} quarantined messages.")


@app.command()
def clean(
    relay: str,
    limit: int = typer.Option(MOST_OBJECTS, min=1, help="At most so many objects."),
    from_start: bool = typer.Option(False, help="Look again at what earlier runs have left."),
    dry_run: bool = typer.Option(True, help="Only count; --no-dry-run deletes or archives them."),
) -> None:
    """Delete or archive objects that every pipeline which reads them has landed, as the relay declares."""
    found = clean_source(catalog(), relay, dry_run=dry_run, limit=limit, from_start=from_start)
    verb = {"delete": "deleted", "archive": "archived"}[found.mode]
    console.print(
        f"{found.removed:,} objects ({readable_bytes(found.bytes)}) {'would be ' if dry_run else ''}{verb}. Left: "
        f"{found.unread:,} not landed everywhere, {found.young:,} too young, {found.in_quarantine:,} that quarantine "
        f"needs, {found.unclaimed:,} that no pipeline reads, {found.changed:,} replaced since; {found.gone:,} gone."
    )
    if dry_run and found.removed:
        console.print("Nothing was changed: --no-dry-run does it.")


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
        console.print(f"{'read by':<10}{_told(reading)}", highlight=False, markup=False)
    if not answer.readings:
        console.print(f"{'read by':<10}no pipeline: none declares its place")


def _told(reading: Reading) -> str:
    if reading.batch_id is None:
        return f"{reading.pipeline}: not yet"
    if reading.whole is not None:
        return f"{reading.pipeline} in batch {reading.batch_id}: nothing, {reading.whole}"
    rows = ", ".join(f"{count} in {table}" for table, count in reading.rows.items()) or "no rows"
    rejected = "".join(f", {count} {reason}" for reason, count in reading.rejected.items())
    return f"{reading.pipeline} in batch {reading.batch_id}: {rows}" + (
        f"; in quarantine{rejected}" if rejected else ""
    )
