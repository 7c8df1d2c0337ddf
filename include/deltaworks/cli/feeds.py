"""`deltaworks feeds`: delivered positions, lag and dead letters of feeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.feeds import FeedRecord, FeedRecords
from deltaworks.specs.catalog import find_by_name

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.feeds import FeedSpec

app = typer.Typer(no_args_is_help=True)
_PIPELINE = typer.Argument("", help="A pipeline; by default all pipelines with feeds.")
_COLUMNS = (
    "feed",
    "reads",
    "to",
    "delivery",
    "position",
    "lag_seconds",
    "changes",
    "dead_letters",
    "activity",
    "delivered",
)


@app.command("list")
@listing_command
def list_feeds(pipeline: str = _PIPELINE) -> Listing:
    """List feeds: delivered position, age of the oldest undelivered change, and current delivery."""
    project = catalog()
    objects = open_objects(project.environment.lake)
    pipelines = [project.pipeline(pipeline)] if pipeline else list(project.pipelines.values())
    listing = Listing(_COLUMNS, title="feeds")
    for spec in pipelines:
        for feed in spec.feeds:
            _add(listing, spec.pipeline, feed, FeedRecords(objects, spec.pipeline, feed.name))
    return listing


def _add(listing: Listing, pipeline: str, feed: FeedSpec, records: FeedRecords) -> None:
    record = records.read()
    name = f"{pipeline}.{feed.name}"
    if record is None:
        listing.add(name, feed.reads, feed.to.kind, 0, "not started", None, 0, 0, "", "")
        return
    at = parse_iso(record.delivered_at)
    listing.add(
        name,
        feed.reads,
        feed.to.kind,
        record.number,
        str(record.position),
        _lag_seconds(record),
        record.changes,
        record.dead_letters,
        _current_activity(record, records),
        Cell(at, f"{at:%Y-%m-%d %H:%M:%S}" if at else ""),
    )


def _lag_seconds(record: FeedRecord) -> int:
    since = parse_iso(record.pending_since)
    return 0 if since is None else max(0, round((utc_now() - since).total_seconds()))


def _current_activity(record: FeedRecord, records: FeedRecords) -> str:
    texts = []
    if (delivery := record.current_delivery) is not None:
        verb = "repeats" if delivery.replay_of is not None else "delivers"
        texts.append(f"{verb} {delivery.number}, {delivery.sent_changes:,} sent")
    if (request := records.replay_request()) is not None:
        scope = "everything" if request.since is None else f"from {request.since}"
        texts.append(f"replay of {scope} by {request.by}")
    return "; ".join(texts)


@app.command("dead-letters")
@listing_command
def dead_letters(
    pipeline: str = typer.Argument(help="The pipeline."),
    feed: str = typer.Argument(help="The feed."),
    delete: bool = typer.Option(False, "--delete", help="Delete them after listing, and resolve their alert."),
) -> Listing:
    """List changes that the receiver permanently rejects, with reason and message."""
    records, objects = _records(catalog(), pipeline, feed)
    listing = Listing(("delivery", "reason", "key", "op", "detail", "message"), title="dead letters")
    for letters in records.dead_letters():
        for letter in letters.letters:
            message = json.dumps(letter.get("message", {"bytes": letter.get("bytes")}), ensure_ascii=False)
            listing.add(letters.number, letter["reason"], letter["key"], letter["op"], letter["detail"], message)
    if delete:
        from deltaworks.alerts.raising import resolve_alert

        removed = records.delete_dead_letters()
        resolve_alert(objects, cause="FEED_DEAD_LETTERS", subject=f"{pipeline}.{feed}")
        print_line(f"Deleted the dead letters of {removed} delivery parts.", error=True)
    return listing


def _records(project: Catalog, pipeline: str, feed: str) -> tuple[FeedRecords, ObjectStore]:
    spec = project.pipeline(pipeline)
    feed_spec = find_by_name(feed, {item.name: item for item in spec.feeds}, "feed")
    objects = open_objects(project.environment.lake)
    return FeedRecords(objects, pipeline, feed_spec.name), objects
