"""Operations on a relay's landed objects: compare buckets with the file event log, redrive messages, delete old
objects.
"""

from __future__ import annotations

from pydantic import Field

from deltaworks.control.listing import Listing, format_bytes
from deltaworks.control.provenance import current_person
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options

_MAX_SHOWN = 20


class ReconcileOptions(Options):
    """Options of a comparison of buckets and file event log."""

    prefix: str | None = Field(None, description="Only keys with this prefix.")
    dry_run: bool = Field(
        True, description="Only compare; otherwise the relay lists its buckets and logs the missing objects."
    )


def reconcile(context: OperationContext, options: ReconcileOptions) -> Report:
    """Compares a relay's buckets with its file event log, by one listing.

    Unless it is a dry run, it requests that the relay logs objects that were never announced.

    Raises:
        ConfigError: RELAY_LISTING_UNDECLARED.
    """
    from deltaworks.control.objects import open_objects
    from deltaworks.engine.object_status import ObjectStatusReader
    from deltaworks.sources.objects.relay.lister import request_listing
    from deltaworks.sources.objects.relay.redrive import reconcile as compare_with_log
    from deltaworks.tables.lake import Lake

    relay, environment = context.subject, context.catalog.environment
    spec = context.catalog.relay(relay)
    readers = ObjectStatusReader(context.catalog, relay).readers()
    result = compare_with_log(spec, Lake(environment.lake), environment.landing, readers, prefix=options.prefix or "")
    parts: list[str | Listing] = [
        f"{result.listed:,} objects listed, {result.logged:,} file events in the log: {len(result.unannounced):,} that "
        f"were never announced, {result.recent:,} that may still be announced, {len(result.missing):,} deleted "
        "before they were read."
    ]
    for title, names in (("not announced", result.unannounced), ("gone", result.missing)):
        parts += [f"  {title}: {name}" for name in names[:_MAX_SHOWN]]
        if len(names) > _MAX_SHOWN:
            parts.append(f"  ... and {len(names) - _MAX_SHOWN:,} more")
    if not options.dry_run:
        if spec.listing is None:
            raise ConfigError(
                "RELAY_LISTING_UNDECLARED",
                f"Relay {relay!r} declares no `listing`, so it only reads messages.",
                hint=(
                    f"Declare `listing: {{}}` in include/relays/{relay}.yaml, restart the relay, and run this again."
                ),
            )
        request_listing(open_objects(environment.lake), relay, by=current_person())
        parts.append(f"Requested that {relay} lists its buckets; `deltaworks status` shows whether it is running.")
    return Report(parts=parts)


class RedriveOptions(Options):
    """Options of a redrive."""

    limit: int = Field(10_000, ge=1, description="Maximum number of messages of each kind.")
    dry_run: bool = Field(True, description="Only count the messages.")


def redrive(context: OperationContext, options: RedriveOptions) -> Report:
    """Moves messages from the dead-letter queue back to the queue. Idempotent: the log accepts each object once.

    Raises:
        ConfigError: RELAY_WITHOUT_QUEUE.
    """
    from deltaworks.sources.objects.relay import redrive as redriving
    from deltaworks.sources.objects.relay.queue import NotificationQueue
    from deltaworks.specs.base import resolve_text
    from deltaworks.tables.lake import Lake

    relay, environment = context.subject, context.catalog.environment
    spec = context.catalog.relay(relay)
    if spec.queue_url is None:
        raise ConfigError("RELAY_WITHOUT_QUEUE", f"Relay {relay!r} reads no queue.")
    queue = NotificationQueue(environment.messaging, resolve_text(spec.queue_url), wait_seconds=1)
    result = redriving.redrive(spec, Lake(environment.lake), queue, dry_run=options.dry_run, limit=options.limit)
    dead = "no dead-letter queue" if result.dead_letters is None else f"about {result.dead_letters:,} dead letters"
    parts = [
        f"{dead}; {result.quarantined:,} quarantined messages: {result.usable:,} can be used now, "
        f"{result.already_logged:,} hold nothing new, {sum(result.reasons.values()):,} still cannot be used."
    ]
    if result.reasons:
        parts.append("  still: " + ", ".join(f"{name} {count:,}" for name, count in result.reasons.most_common()))
    if options.dry_run:
        parts.append("Nothing was sent. Use --no-dry-run to send them.")
    else:
        parts.append(f"Moved back: {result.dead_letters_moved:,} dead letters, {result.sent:,} quarantined messages.")
    return Report(parts=parts, results=[result])


class CleanOptions(Options):
    """Options of the removal of landed objects."""

    limit: int = Field(100_000, ge=1, description="Maximum number of objects.")
    from_start: bool = Field(False, description="Check objects again that earlier runs kept.")
    dry_run: bool = Field(True, description="Only count the messages.")


def clean(context: OperationContext, options: CleanOptions) -> Report:
    """Deletes or archives landed objects that every stream has read; final. Idempotent, and safe while streams run."""
    from deltaworks.recovery.clean import clean_source

    result = clean_source(
        context.catalog, context.subject, dry_run=options.dry_run, limit=options.limit, from_start=options.from_start
    )
    verb = {"delete": "deleted", "archive": "archived"}[result.mode]
    would = "would be " if options.dry_run else ""
    parts = [
        f"{result.removed:,} objects ({format_bytes(result.bytes)}) {would}{verb}. Kept: "
        f"{result.pending:,} not landed by all pipelines, {result.within_retention:,} within the retention, "
        f"{result.in_quarantine:,} needed by quarantine, {result.without_reader:,} without a pipeline, "
        f"{result.changed:,} replaced; {result.already_absent:,} were missing already."
    ]
    if options.dry_run and result.removed:
        parts.append("Nothing was changed. Use --no-dry-run to apply it.")
    return Report(parts=parts, results=[result])
