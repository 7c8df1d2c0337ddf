"""Compares a relay's buckets with its log: objects never announced, and objects deleted before they were read.

Read-only. Safe while the relay runs; objects that land meanwhile may be counted either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.records.replacements import Replacements
from deltaworks.sources.objects.file_event_log import FileEventLog, LogReader, file_event_identity, filter_events
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.specs.relay import ListingSpec, RelaySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_COLUMNS = ("seq", "bucket", "key", "etag", "version_id")


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
                etag = event.etag if original is None else original.etag
                name = file_event_identity(bucket, event.key, etag, overwrites=_listing_overwrites(spec))
                listed[name] = (f"{bucket}/{event.key}", event.event_time > recent_after)
    result.listed = len(listed)
    for part in FileEventLog(lake, spec.relay).read_parts(columns=_COLUMNS):
        for row in part.to_pylist():
            result.logged += 1
            listed.pop(
                file_event_identity(row["bucket"], row["key"], row["etag"], overwrites=_listing_overwrites(spec)), None
            )
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
