"""Deliveries of a feed, sent again."""

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
    since: int | None = Field(None, ge=1, description="The first delivery to repeat; those after it follow.")
    everything: bool = Field(False, description="Send every row there is now instead, as one new delivery.")
    limit: int = Field(100_000, ge=1, description="At most so many changes; more are refused.")
    dry_run: bool = Field(True, description="Only count them.")


def replay(context: OperationContext, options: ReplayFeedOptions) -> Report:
    """Ask the feed's process to send deliveries again, under the ids they had, or every row. Safe beside that process,
    which begins once it has ended what is under way; asking twice is refused.

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
                f"Delivery {options.since} of {name} is not on record; kept are {numbers}.",
                hint=f"Of the last {feed.replay_hours} h they are kept (replay_hours). Else send --everything.",
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
            parts=[f"{described_changes} would be sent again.", "Nothing was asked for: --no-dry-run does it."]
        )
    if not records.request_replay(ReplayRequest(since=options.since, by=current_person(), at=iso_now())):
        raise ConcurrencyError(
            "FEED_REPLAY_PENDING", f"Another replay of {name} is asked for already.", hint=_LIST_HINT.format(name)
        )
    return Report(parts=[f"Asked the process of {spec.pipeline}'s feeds to send {described_changes} again."])


_LIST_HINT = "`deltaworks feeds list` shows deliveries and what is asked for, of {} too."
