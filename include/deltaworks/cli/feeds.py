"""`deltaworks feeds`, `remediations` and `remediate`: processes that send changes and actions to other systems."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import apply_settings, catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.feeds import FeedRecord, FeedRecords
from deltaworks.control.records.remediation import RemediationRecords
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


_NAME = typer.Argument(help="Name of the remediation in the environment.")


@app.command("list")
@listing_command
def list_remediations(
    limit: int = typer.Option(20, help="Maximum notifications per remediation, newest first."),
) -> list[Listing]:
    """List remediations, their holds, and their last actions."""
    project = catalog()
    records = RemediationRecords(open_objects(project.environment.lake))
    remediations = Listing(("remediation", "on", "targets", "step", "floor", "dry_run", "held"), title="remediations")
    actions = Listing(("at", "remediation", "state", "from", "to", "reason", "notification"), title="actions")
    for spec in project.environment.remediations:
        held = records.hold_reason(spec.name) or ""
        remediations.add(spec.name, spec.rule, ", ".join(spec.targets), spec.step, spec.floor, spec.dry_run, held)
        for record in list(records.all(spec.name))[: -limit - 1 : -1]:
            at = Cell(record.at, record.at[:16].replace("T", " "))
            actions.add(
                at, record.remediation, record.state, record.source, record.target, record.reason, record.notification
            )
    return [remediations, actions]


@app.command()
def hold(
    name: str = _NAME,
    reason: str = typer.Option("held by hand", help="Reason, shown in listings."),
) -> None:
    """Hold a remediation: it stops planning actions. Open actions are still verified."""
    records = _remediation_records(name)
    records.hold(name, by=getpass.getuser(), reason=reason)
    print_line(f"{name} is held. Resume it with `deltaworks remediations resume {name}`.")


@app.command()
def resume(name: str = _NAME) -> None:
    """Resume a held remediation, and resolve the alerts that ask for a person."""
    from deltaworks.remediation.step_notifier import resolve_hold_alerts

    was_held = _remediation_records(name).resume(name)
    resolve_hold_alerts(open_objects(catalog().environment.lake), name)
    print_line(f"{name} is resumed." if was_held else f"{name} was not held.")


def remediate(name: str = _NAME) -> None:
    """Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, roll back."""
    from deltaworks.remediation.__main__ import main

    apply_settings()
    code = main(["--remediation", name, "--early-failure-wait-seconds", "0"])
    if code:
        raise typer.Exit(code)


def _remediation_records(name: str) -> RemediationRecords:
    from deltaworks.remediation.process import find_remediation

    project = catalog()
    find_remediation(project, name)
    return RemediationRecords(open_objects(project.environment.lake))
