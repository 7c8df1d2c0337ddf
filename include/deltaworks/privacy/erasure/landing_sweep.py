"""Rewrites landed objects of a namespace that contain events of erased people.

A replacement is recorded before the object is written, so that relays, listings, streams and replays recognize it. In
versioned buckets the replaced version is then deleted. After a crash the next sweep completes recorded replacements and
rewrites the remaining objects. Rewritten objects contain no tokens, so they are not rewritten again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from deltaworks.control.clock import parse_iso
from deltaworks.control.provenance import current_run
from deltaworks.control.records.reprocess import ReplacedObject, ReplacementPlan, Replacements, WrittenObject
from deltaworks.errors import ConfigError
from deltaworks.privacy.erasure.landing_rewrite import CannotRewriteError, ContentEraser, ErasedContent
from deltaworks.privacy.erasure.landing_store import LandedObject, LandingStore, ObjectState
from deltaworks.privacy.erasure.requests import Namespace, require_privacy
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec, key_matcher

#: Limits of pending objects, which share one replacement record and are held in memory.
_MAX_PENDING_OBJECTS: Final = 100
_MAX_PENDING_BYTES: Final = 64 << 20
#: Maximum number of objects in the list of objects that cannot be rewritten.
_MAX_NAMED: Final = 20


@dataclass(slots=True, kw_only=True)
class LandingReport:
    """Result of a sweep.

    Args:
        objects: number of scanned objects, and `bytes` their stored size.
        hits: number of objects with events to erase, and `hit_bytes` their stored size.
        rewritten: number of rewritten objects, and `removed_versions` of deleted old versions.
        events: number of erased events by request.
        unreadable: number of unreadable events, which stay because their owners are unknown.
        blocked: objects that cannot be rewritten, anonymized, with the reason.
    """

    objects: int = 0
    bytes: int = 0
    hits: int = 0
    hit_bytes: int = 0
    rewritten: int = 0
    removed_versions: int = 0
    events: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    blocked: list[str] = field(default_factory=list)

    def record_blocked(self, landed: LandedObject, reason: str) -> None:
        """Records an object that stays although it may contain personal data."""
        if len(self.blocked) < _MAX_NAMED:
            self.blocked.append(f"{landed.anonymous_name} ({reason})")

    def describe(self) -> list[str]:
        """Returns the result as text lines."""
        lines = [
            f"Landed objects with events to erase: {self.hits:,} of {self.objects:,} objects, {self.hit_bytes:,} "
            f"of {self.bytes:,} bytes."
        ]
        return [*lines, *(f"Cannot be rewritten: {name}" for name in self.blocked)]


@dataclass(frozen=True, slots=True)
class _LandingLocation:
    bucket: str
    prefix: str
    glob: str | None

    def contains(self, key: str) -> bool:
        return key.startswith(self.prefix) and bool(key_matcher(self.glob)(key))


@dataclass(frozen=True, slots=True)
class _PendingReplacement:
    landed: LandedObject
    properties: Mapping[str, Any]
    erased: ErasedContent
    record: ReplacedObject

    @property
    def data(self) -> bytes:
        return self.erased.stored or b""


class LandingSweep:
    """One sweep, under the namespace's lease. Not thread-safe.

    Args:
        searches: token search by request id.
        dry_run: only counts.
        fault: test hook, called with `recorded`, `put`, `settled` and `deleted`.
    """

    def __init__(
        self,
        namespace: Namespace,
        searches: Mapping[str, TokenSearch],
        *,
        dry_run: bool = False,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._namespace = namespace
        self._searches = searches
        self._dry_run = dry_run
        self._fault = fault
        self._store = LandingStore(namespace.catalog.environment.landing)
        self._replacements = Replacements(namespace.objects)
        self._readers: dict[_LandingLocation, list[PipelineSpec]] = {}
        for spec in namespace.pipelines:
            if isinstance(spec.source, FileSourceSpec) and require_privacy(spec).erase.landing == "rewrite":
                location = _LandingLocation(spec.source.bucket, spec.source.prefix, spec.source.glob)
                self._readers.setdefault(location, []).append(spec)
        self._erasers: dict[tuple[str, ...], ContentEraser] = {}
        self._report = LandingReport()
        self._pending: list[_PendingReplacement] = []

    def run(self) -> LandingReport:
        """Sweeps all objects. Idempotent; safe with concurrent relays, streams and producers.

        Raises:
            ConfigError: LISTING_REFUSED; ERASURE_LANDING_REFUSED, versions may not be listed or deleted.
            ContractError: ERASURE_UNREADABLE.
        """
        self._replacements.refresh()
        if not self._dry_run:
            for plan in self._replacements.unfinished(self._namespace.name):
                self._finish_plan(plan)
        for landed in self._list_objects():
            self._process_object(landed)
            if (
                len(self._pending) >= _MAX_PENDING_OBJECTS
                or sum(len(pending.data) for pending in self._pending) >= _MAX_PENDING_BYTES
            ):
                self._replace_pending()
        self._replace_pending()
        return self._report

    def _list_objects(self) -> Iterator[LandedObject]:
        """Yields every object once, even if several pipelines read it."""
        locations = list(self._readers)
        for number, location in enumerate(locations):
            earlier = [
                location_before for location_before in locations[:number] if location_before.bucket == location.bucket
            ]
            for landed in self._store.list_objects(location.bucket, prefix=location.prefix, glob=location.glob):
                if not any(location_before.contains(landed.key) for location_before in earlier):
                    yield landed

    def _process_object(self, landed: LandedObject) -> None:
        try:
            content = self._store.read(landed)
        except ConfigError as refused:
            self._report.record_blocked(landed, refused.message)
            return
        if content is None:  # if a producer rewrote it meanwhile, the newer object is listed separately
            return
        data, properties = content
        report = self._report
        report.objects, report.bytes = report.objects + 1, report.bytes + len(data)
        landed_at = self._landed_at(landed)
        try:
            erased = self._eraser(landed).erase(data, at_ms=int(landed_at.timestamp() * 1000))
        except CannotRewriteError as reason:
            report.record_blocked(landed, str(reason))
            return
        report.unreadable += erased.unreadable
        if erased.stored is None:
            return
        report.hits, report.hit_bytes = report.hits + 1, report.hit_bytes + len(data)
        report.events.update(erased.events)
        if landed.is_current:
            self._pending.append(
                _PendingReplacement(
                    landed, properties, erased, _replaced_object(landed, properties, data, erased, landed_at)
                )
            )
        else:
            self._remove_version(landed)

    def _remove_version(self, landed: LandedObject) -> None:
        """Deletes an old version that no reader needs, because its replacement is recorded or its key was deleted."""
        replaced = self._replacements.successors(landed.bucket, landed.key, landed.etag)
        if not (landed.is_deleted or replaced) or landed.version_id is None:
            self._report.record_blocked(landed, "an old version with different content")
        elif not self._dry_run:
            self._store.delete_version(landed.bucket, landed.key, landed.version_id)
            self._report.removed_versions += 1

    def _landed_at(self, landed: LandedObject) -> datetime:
        """Returns when the object landed. A replacement has the landing time of the original."""
        original = self._replacements.original(landed.bucket, landed.key, landed.etag)
        made_at = None if original is None else parse_iso(original.landed_at)
        return made_at or landed.landed_at

    def _eraser(self, landed: LandedObject) -> ContentEraser:
        specs = [
            spec
            for location, readers in self._readers.items()
            if location.bucket == landed.bucket and location.contains(landed.key)
            for spec in readers
        ]
        names = tuple(spec.pipeline for spec in specs)
        if names not in self._erasers:
            self._erasers[names] = ContentEraser(specs, self._namespace.token_key, self._searches)
        return self._erasers[names]

    def _replace_pending(self) -> None:
        """Replaces pending objects: records the plan, writes the objects, and deletes the old versions."""
        pending, self._pending = self._pending, []
        if not pending or self._dry_run:
            return
        plan = self._replacements.create_plan(
            [replacement.record for replacement in pending], namespace=self._namespace.name, by=current_run()
        )
        self._fault("recorded")
        put: list[WrittenObject] = []
        for replacement in pending:
            state = self._put(replacement, plan)
            put.append(
                WrittenObject() if state is None else WrittenObject(etag=state.etag, version_id=state.version_id)
            )
            self._fault("put")
        self._replacements.record_completion(plan, put)
        self._fault("settled")
        self._delete_replaced(plan, put)

    def _put(self, pending: _PendingReplacement, plan: ReplacementPlan) -> ObjectState | None:
        try:
            state = self._store.put(pending.landed, pending.data, dict(pending.properties), number=plan.number)
        except ConfigError as refused:
            self._report.record_blocked(pending.landed, refused.message)
            return None
        if state is None:
            self._report.record_blocked(pending.landed, "its producer replaced it meanwhile; the next run processes it")
        else:
            self._report.rewritten += 1
        return state

    def _finish_plan(self, plan: ReplacementPlan) -> None:
        """Completes an interrupted plan: determines which objects were written."""
        put = []
        for replaced in plan.objects:
            state = self._store.object_state(replaced.bucket, replaced.key)
            is_ours = state is not None and (state.replacement == plan.number or state.etag == replaced.new_etag)
            put.append(
                WrittenObject(etag=state.etag, version_id=state.version_id)
                if state is not None and is_ours
                else WrittenObject()
            )
        self._replacements.record_completion(plan, put)
        self._delete_replaced(plan, put)

    def _delete_replaced(self, plan: ReplacementPlan, put: list[WrittenObject]) -> None:
        for before, now in zip(plan.objects, put, strict=True):
            if now.etag is not None and before.version_id is not None and before.version_id != now.version_id:
                self._store.delete_version(before.bucket, before.key, before.version_id)
                self._report.removed_versions += 1
                self._fault("deleted")


def sweep_detail(report: LandingReport, request_id: str) -> dict[str, int]:
    """Returns the details of a sweep that the request's state records."""
    return {
        "objects": report.objects,
        "bytes": report.bytes,
        "hits": report.hits,
        "rewritten": report.rewritten,
        "removed": report.removed_versions,
        "events": report.events[request_id],
        "unreadable": report.unreadable,
    }


def _replaced_object(
    landed: LandedObject, properties: Mapping[str, Any], data: bytes, erased: ErasedContent, landed_at: datetime
) -> ReplacedObject:
    new = erased.stored or b""
    return ReplacedObject(
        bucket=landed.bucket,
        key=landed.key,
        etag=landed.etag,
        version_id=properties.get("VersionId"),
        new_etag=hashlib.md5(new, usedforsecurity=False).hexdigest(),
        bytes_before=len(data),
        bytes_after=len(new),
        events=erased.events.total(),
        landed_at=landed_at.astimezone(UTC).isoformat(),
        collector_numbers=erased.sequence_numbers.encode(),
    )
