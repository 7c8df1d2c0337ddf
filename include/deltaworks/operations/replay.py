"""Counts, shows and replays quarantined rows, and lets a feed send past deliveries again."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from deltaworks.control.listing import Cell, Listing, timestamp_cell
from deltaworks.control.provenance import current_person
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional, Section

if TYPE_CHECKING:
    from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter


_FILTER_SECTION = Section("More filters")
#: Characters of a raw value that are shown by default.
_SHOWN_CHARACTERS = 500


class FilterOptions(Options):
    """Options that select quarantined rows; all conditions apply."""

    reason: tuple[str, ...] = Field((), description="Only rows with this reason.")
    event: tuple[str, ...] = Field((), description="Only events of this name.")
    from_date: str | None = Field(None, description="Only rows quarantined on this date or later, YYYY-MM-DD.")
    to_date: str | None = Field(None, description="Only rows quarantined on this date or earlier.")
    from_batch: Annotated[int | None, _FILTER_SECTION] = Field(
        None, ge=0, description="Only rows of this batch or later ones."
    )
    to_batch: Annotated[int | None, _FILTER_SECTION] = Field(
        None, ge=0, description="Only rows of this batch or earlier ones."
    )
    fingerprint: Annotated[str | None, _FILTER_SECTION] = Field(
        None, description="Only rows rejected by the declaration with this fingerprint."
    )


class ListOptions(FilterOptions):
    """Options of the listing of quarantined rows."""

    all: bool = Field(False, description="Include rows that a replay has landed.")


class ShowOptions(ListOptions):
    """Options for showing single quarantined rows."""

    limit: int = Field(10, ge=1, le=1000, description="Maximum number of rows, newest first.")
    full: bool = Field(False, description="Show complete raw values instead of their first 500 characters.")


class ReplayOptions(FilterOptions):
    """Options of a replay."""

    limit: int | None = Field(None, ge=1, description="Maximum number of rows, oldest first.")
    dry_run: bool = Field(True, description="Only count the rows that would land.")


def list_rows(context: OperationContext, options: ListOptions) -> Report:
    """Counts open rows by date, reason, field, event and declaration."""
    counts = _quarantine(context).counts(build_filter(options), all_rows=options.all, by_field=True)
    listing = Listing(("date", "reason", "field", "event", "spec", "rows"))
    for row in counts:
        name = Cell(row["event_name"], row["event_name"] or "-")
        field = Cell(row["path"], row["path"] or "-")
        listing.add(row["quarantine_date"], row["code"], field, name, row["spec_fingerprint"], row["rows"])
    return Report(parts=[listing] if counts else ["No open rows.", listing])


def show_rows(context: OperationContext, options: ShowOptions) -> Report:
    """Prints open rows with their reasons and raw values."""
    listing = Listing(("event", "object", "batch", "seq", "position", "at", "reasons", "raw"), layout="blocks")
    for row in _quarantine(context).rows(build_filter(options), limit=options.limit, all_rows=options.all):
        reasons = "; ".join(f"{reason['code']} {reason['path']}: {reason['detail']}" for reason in row["reasons"])
        position_columns = (
            row["object_key"],
            row["_batch_id"],
            row["_seq"],
            row["_position"],
            timestamp_cell(row["_ingested_at"]),
        )
        raw = Cell(row["raw"], _raw_text(row, full=options.full))
        listing.add(row["event_name"], *position_columns, Cell(row["reasons"], reasons), raw)
    return Report(parts=[listing] if listing.cells else ["No open rows.", listing])


def _raw_text(row: Mapping[str, Any], *, full: bool) -> str:
    """Returns the raw value for display: truncated if it is long, with its size."""
    raw = row["raw"] or ""
    if len(raw) > _SHOWN_CHARACTERS and not full:
        return f"{raw[:_SHOWN_CHARACTERS]}… (of {row['raw_bytes']:,} bytes; --full shows the stored part)"
    return raw if row["raw_complete"] else f"{raw} (of {row['raw_bytes']:,} bytes)"


def replay(context: OperationContext, options: ReplayOptions) -> Report:
    """Lands quarantined rows that fit the current declaration, each exactly once. Idempotent.

    An interrupted replay is completed first.
    """
    from deltaworks.recovery.quarantine.replay import replay_quarantine

    result = replay_quarantine(
        context.catalog, context.subject, build_filter(options), dry_run=options.dry_run, limit=options.limit
    )
    if not result.dry_run:
        from deltaworks.recovery.quarantine.open_rows import recount_quarantine

        recount_quarantine(context.catalog.environment.lake, context.subject)
    will = "would land" if result.dry_run else "landed"
    parts: list[str | Listing] = []
    if result.resumed_replays:
        parts.append("An interrupted replay was completed first.")
    parts.append(
        f"{result.selected:,} open rows selected: {result.landed:,} {will}, "
        f"{result.still_rejected:,} still do not fit, {result.not_replayable:,} cannot be read again; "
        f"{result.seconds:.1f} s."
    )
    for title, counts in (
        ("rows to tables", result.rows_by_table),
        ("still do not fit", result.reasons),
        ("cannot be read again", result.missing_causes),
    ):
        parts += _counts_line(title, counts)
    if result.dry_run and result.landed:
        parts.append("Nothing was written. Use --no-dry-run to land them.")
    return Report(parts=parts, results=[result])


def build_filter(options: FilterOptions) -> QuarantineFilter:
    """Returns the filter of quarantined rows that the options describe.

    Raises:
        ConfigError: QUARANTINE_REASON_UNKNOWN, DATE_INVALID.
    """
    from deltaworks.events.reasons import ReasonCode
    from deltaworks.recovery.quarantine.open_rows import QuarantineFilter

    unknown = sorted(set(options.reason) - {str(code) for code in ReasonCode})
    if unknown:
        codes = ", ".join(ReasonCode)
        raise ConfigError(
            "QUARANTINE_REASON_UNKNOWN", f"Unknown reasons: {', '.join(unknown)}.", hint=f"Known: {codes}."
        )
    from_date, to_date = _date(options.from_date), _date(options.to_date)
    if from_date and to_date and to_date < from_date:
        raise ConfigError("DATE_INVALID", f"The dates {from_date} to {to_date} are empty: give the earlier one first.")
    if options.from_batch is not None and options.to_batch is not None and options.to_batch < options.from_batch:
        raise ConfigError(
            "OPTION_INVALID",
            f"The batches {options.from_batch} to {options.to_batch} are empty: give the lower one first.",
        )
    return QuarantineFilter(
        reasons=options.reason,
        events=options.event,
        from_date=from_date,
        to_date=to_date,
        from_batch=options.from_batch,
        to_batch=options.to_batch,
        fingerprint=options.fingerprint,
    )


def _date(text: str | None) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError("DATE_INVALID", f"{text!r} is not a date.") from None


def _counts_line(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    return [f"  {title}: " + ", ".join(f"{name} {count:,}" for name, count in counts.most_common())]


def _quarantine(context: OperationContext) -> Quarantine:
    from deltaworks.recovery.quarantine.open_rows import Quarantine
    from deltaworks.tables.lake import Lake

    return Quarantine(Lake(context.catalog.environment.lake), context.subject)


class ReplayFeedOptions(Options):
    """Options of a replay of deliveries."""

    feed: Annotated[str, Positional()] = Field(description="The feed.")
    since: int | None = Field(None, ge=1, description="The first delivery to repeat; later ones follow.")
    everything: bool = Field(False, description="Send all current rows instead, as one new delivery.")
    limit: int = Field(100_000, ge=1, description="Maximum number of changes; more are rejected.")
    dry_run: bool = Field(True, description="Only count the changes.")


def replay_feed(context: OperationContext, options: ReplayFeedOptions) -> Report:
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
