"""Replays deliveries of a feed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.control.provenance import current_person
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional


class ReplayFeedOptions(Options):
    """Options of a replay of deliveries."""

    feed: Annotated[str, Positional()] = Field(description="The feed.")
    since: int | None = Field(None, ge=1, description="The first delivery to repeat; later ones follow.")
    everything: bool = Field(False, description="Send all current rows instead, as one new delivery.")
    limit: int = Field(100_000, ge=1, description="Maximum number of changes; more are rejected.")
    dry_run: bool = Field(True, description="Only count the changes.")


def replay(context: OperationContext, options: ReplayFeedOptions) -> Report:
    """Requests that the feed's process sends past deliveries again with their original ids, or sends all rows.

    Safe while that process runs: it starts the replay after the current delivery. A second request is rejected.

    Raises:
        ConfigError: FEED_UNKNOWN, OPTION_INVALID, FEED_DELIVERY_UNKNOWN, FEED_REPLAY_UNBOUNDED.
        ConcurrencyError: FEED_REPLAY_PENDING.
    """
    from deltaworks.control.clock import iso_now
    from deltaworks.control.objects import open_objects
    from deltaworks.control.records.feeds import FeedRecords, Position, ReplayRequest
    from deltaworks.feeds.feed_source import open_feed_source
    from deltaworks.specs.catalog import find_by_name

    spec = context.catalog.pipeline(context.subject)
    feed = find_by_name(options.feed, {item.name: item for item in spec.feeds}, "feed")
    name = f"{spec.pipeline}.{feed.name}"
    if options.everything == (options.since is not None):
        raise ConfigError(
            "OPTION_INVALID", "Give --since with a delivery, or --everything.", hint=_LIST_HINT.format(name)
        )
    objects = open_objects(context.catalog.environment.lake)
    records = FeedRecords(objects, spec.pipeline, feed.name)
    if options.since is not None:
        deliveries = [item.delivery for item in records.deliveries()]
        selected = [delivery for delivery in deliveries if delivery.number >= options.since]
        if not any(delivery.number == options.since for delivery in deliveries):
            numbers = f"{deliveries[0].number} to {deliveries[-1].number}" if deliveries else "none"
            raise ConfigError(
                "FEED_DELIVERY_UNKNOWN",
                f"Delivery {options.since} of {name} is not on record; available: {numbers}.",
                hint=(
                    f"Deliveries are kept for {feed.replay_hours} h (replay_hours). Use --everything to send all rows."
                ),
            )
        changes = sum(delivery.sent_changes for delivery in selected)
        described_changes = f"{changes:,} changes of {len(selected):,} deliveries"
    else:
        reading = open_feed_source(context.catalog, spec, feed, objects, records)
        current = reading.current()
        changes = reading.count(Position(kind=current.kind), current)
        described_changes = f"all {changes:,} rows of {feed.reads}"
    if changes > options.limit:
        raise ConfigError(
            "FEED_REPLAY_UNBOUNDED",
            f"{described_changes} would be sent to {name}'s receiver, and --limit is {options.limit:,}.",
            hint=f"Choose a later delivery, or --limit {changes}.",
        )
    if options.dry_run:
        return Report(
            parts=[
                f"{described_changes} would be sent again.",
                ("Nothing was requested. Use --no-dry-run to send them."),
            ]
        )
    if not records.request_replay(ReplayRequest(since=options.since, by=current_person(), at=iso_now())):
        raise ConcurrencyError(
            "FEED_REPLAY_PENDING", f"Another replay of {name} is pending.", hint=_LIST_HINT.format(name)
        )
    return Report(parts=[f"Requested that the feeds process of {spec.pipeline} sends {described_changes} again."])


_LIST_HINT = "`deltaworks feeds list` shows deliveries and pending replays, including those of {}."
