"""Compares a relay's buckets with its log, and returns messages to its queue that the log lacks.

The comparison finds objects never announced, and objects deleted before they were read. It is read-only and safe while
the relay runs; objects that land meanwhile may be counted either way.

A redrive returns dead letters, and quarantined messages that can be parsed now. Nothing is written to the log: the
relay receives the messages and skips events that its log has. So a repeated or interrupted redrive neither loses nor
duplicates a file event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import Replacements
from deltaworks.sources.objects.file_event_log import (
    IDENTITY_COLUMNS,
    FileEventLog,
    LogReader,
    event_identity,
    filter_events,
    message_quarantine_key,
    row_identity,
)
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.sources.objects.relay.messages import parse_message
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.relay import ListingSpec, RelaySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_EMPTY_RECEIVES = 2


@dataclass(slots=True, kw_only=True)
class RedriveResult:
    """The result of a redrive. In a dry run, nothing was moved or sent.

    Attributes:
        dead_letters: approximate number of messages in the dead-letter queue.
        dead_letters_moved: dead letters that were returned to the queue.
        usable: quarantined messages that can be parsed now and contain files that the log lacks.
        sent: usable messages that were returned to the queue.
        already_logged: quarantined messages whose files are all in the log.
        reasons: why the other messages stay quarantined, with their number.
    """

    dry_run: bool
    dead_letters: int | None = None
    dead_letters_moved: int = 0
    quarantined: int = 0
    usable: int = 0
    sent: int = 0
    already_logged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def redrive(
    spec: RelaySpec, lake: Lake, queue: NotificationQueue, *, dry_run: bool = True, limit: int = 10_000
) -> RedriveResult:
    """Returns usable messages to the queue, at most `limit` of each kind. Safe while the relay runs.

    Raises:
        ConfigError: QUEUE_REFUSED.
    """
    result = RedriveResult(dry_run=dry_run)
    dead_letter_queue = queue.dead_letter_queue()
    if dead_letter_queue is not None:
        result.dead_letters = dead_letter_queue.approximate_backlog()
        if not dry_run:
            result.dead_letters_moved = _move_dead_letters(dead_letter_queue, queue, limit)
    usable = _usable_bodies(spec, lake, result)[:limit]
    if not dry_run:
        result.sent = len(usable) - len(queue.send(usable))
    return result


def _move_dead_letters(dead_letter_queue: NotificationQueue, queue: NotificationQueue, limit: int) -> int:
    """Moves messages from the dead-letter queue to the queue. A message is deleted only after the target queue accepted
    it.
    """
    moved = empty = 0
    while moved < limit and empty < _EMPTY_RECEIVES:
        messages = dead_letter_queue.receive()
        empty = 0 if messages else empty + 1
        refused = queue.send([message.body for message in messages])
        sent = [message for message in messages if message.body not in refused]
        dead_letter_queue.delete(sent)
        moved += len(sent)
        if messages and not sent:
            break
    return moved


def _usable_bodies(spec: RelaySpec, lake: Lake, result: RedriveResult) -> list[str]:
    """Returns the bodies of quarantined messages that can be parsed now and contain a file event that the log lacks."""
    rows = lake.rows(message_quarantine_key(spec.relay), columns=["body"])
    bodies: list[str] = [] if rows is None else list(dict.fromkeys(rows.column("body").to_pylist()))
    result.quarantined = len(bodies)
    names: dict[str, set[bytes]] = {}
    for body in bodies:
        parsed = parse_message(body, buckets=spec.buckets)
        if parsed.problems:
            result.reasons[parsed.reason] += 1
            continue
        names[body] = {event_identity(event, overwrites=spec.overwrites) for event in parsed.events}
    logged = _logged_identities(spec, lake, set().union(*names.values()))
    usable = [body for body, identities in names.items() if identities - logged]
    result.usable, result.already_logged = len(usable), len(names) - len(usable)
    return usable


def _logged_identities(spec: RelaySpec, lake: Lake, identities: set[bytes]) -> set[bytes]:
    """Returns those of the identities that are in the log."""
    logged: set[bytes] = set()
    if not identities:
        return logged
    for part in FileEventLog(lake, spec.relay).read_parts(columns=_COLUMNS):
        for _, *parts in zip(*(part.column(name).to_pylist() for name in _COLUMNS), strict=True):
            name = row_identity(parts, overwrites=spec.overwrites)
            if name in identities:
                logged.add(name)
        if logged == identities:
            break
    return logged


_COLUMNS = ("seq", *IDENTITY_COLUMNS)


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """The result of comparing buckets with the log.

    Attributes:
        unannounced: objects in a bucket that are not in the log, although a message would have arrived by now.
        recent: objects in a bucket that are not in the log but may still be announced.
        missing: objects in the log that are no longer in the bucket, and that some pipeline has not read yet.
    """

    listed: int = 0
    logged: int = 0
    unannounced: list[str] = field(default_factory=list)
    recent: int = 0
    missing: list[str] = field(default_factory=list)


def reconcile(
    spec: RelaySpec, lake: Lake, landing: StorageSpec, readers: Sequence[LogReader], *, prefix: str = ""
) -> Reconciliation:
    """Compares the buckets of a relay with its log, below `prefix`.

    Raises:
        ConfigError: LISTING_REFUSED.
    """
    listing = spec.listing or ListingSpec()
    result = Reconciliation()
    existing: set[tuple[str, str]] = set()
    listed: dict[bytes, tuple[str, bool]] = {}
    replacements = Replacements(open_objects(lake.storage)).refresh()
    recent_after = utc_now() - timedelta(minutes=listing.grace_minutes)
    for bucket in spec.buckets:
        for page in list_pages(landing, bucket, prefix=prefix or listing.prefix, glob=listing.glob):
            for event in page:
                existing.add((bucket, event.key))
                original = replacements.original(bucket, event.key, event.etag)
                landed = event if original is None else replace(event, etag=original.etag)
                name = event_identity(landed, overwrites=_listing_overwrites(spec))
                listed[name] = (f"{bucket}/{event.key}", event.event_time > recent_after)
    result.listed = len(listed)
    for part in FileEventLog(lake, spec.relay).read_parts(columns=_COLUMNS):
        for row in part.to_pylist():
            result.logged += 1
            parts = [row[name] for name in IDENTITY_COLUMNS]
            listed.pop(row_identity(parts, overwrites=_listing_overwrites(spec)), None)
        result.missing += _missing_unread(part, existing, readers, prefix)
    result.unannounced = sorted(name for name, is_recent in listed.values() if not is_recent)
    result.recent = sum(is_recent for _, is_recent in listed.values())
    return result


def _listing_overwrites(spec: RelaySpec) -> Any:
    """Returns the overwrite policy to compare listings with, since a listing shows only the latest version of a key."""
    return "latest" if spec.overwrites == "every_version" else spec.overwrites


def _missing_unread(part: Any, existing: set[tuple[str, str]], readers: Sequence[LogReader], prefix: str) -> list[str]:
    """Returns the names of objects in a part of the log that no longer exist and that some pipeline has not read."""
    names: dict[str, None] = {}
    for reader in readers:
        for row in filter_events(part, bucket=reader.bucket, prefix=reader.prefix, glob=reader.glob).to_pylist():
            unread = row["seq"] > reader.seq and row["key"].startswith(prefix)
            if unread and (row["bucket"], row["key"]) not in existing:
                names[f"{row['bucket']}/{row['key']}"] = None
    return list(names)
