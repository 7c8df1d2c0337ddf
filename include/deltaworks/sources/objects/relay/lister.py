"""Lists a relay's buckets, to find objects that are older than the relay or were never announced.

A complete pass lists all keys once, page by page. The relay appends objects that its log lacks, so an interrupted pass
can be repeated. The time and the result of the last pass are stored, so a restarted relay does not list earlier than
due.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import Field

from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import relay_listing, relay_listing_request
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.outages import retry_outages
from deltaworks.specs.relay import ListingSpec, RelaySpec
from deltaworks.specs.storage import StorageSpec

_PAGES_AHEAD = 4
_RETRY_SECONDS = 300.0
_POLL_SECONDS = 2.0


class ListingRecord(StateRecord):
    """The state of a relay's listings. Times are ISO 8601; counts are from the last complete pass.

    `lost` objects were in the bucket for longer than a message may take and were never announced. `last_keys` has the
    greatest listed key of each bucket.
    """

    first_started_at: str
    passes: int = 0
    last_pass_at: str | None = None
    seconds: float = 0.0
    listed: int = 0
    new: int = 0
    lost: int = 0
    lost_examples: tuple[str, ...] = ()
    last_keys: dict[str, str] = Field(default_factory=dict)


class ListingRequest(StateRecord):
    """Who requested a listing, and when."""

    at: str
    by: str


def read_listing_record(objects: ObjectStore, relay: str) -> ListingRecord | None:
    """Returns the record; None if the relay has never listed.

    Raises:
        ValueError: the object is damaged.
    """
    return ListingRecord.read(objects, relay_listing(relay))


def is_listing_due(record: ListingRecord | None, listing: ListingSpec) -> bool:
    """Returns whether the interval since the last complete pass is over."""
    last = parse_iso(record.last_pass_at) if record is not None and record.last_pass_at else None
    return last is None or utc_now() - last >= timedelta(hours=listing.backfill_interval_hours)


def request_listing(objects: ObjectStore, relay: str, *, by: str) -> None:
    """Requests a listing before it is due."""
    objects.put(_request_key(relay), ListingRequest(at=iso_now(), by=by).encode())


def is_listing_requested(objects: ObjectStore, relay: str) -> bool:
    """Returns whether a listing request is pending."""
    return objects.get(_request_key(relay)) is not None


def _request_key(relay: str) -> str:
    return relay_listing_request(relay)


@dataclass(frozen=True, slots=True)
class ListedPage:
    """The objects of one listing page. Objects older than `lost_before` that the log lacks were never announced; None
    if that is unknown.

    The last page of a pass has `is_last` set and may be empty.
    """

    events: tuple[FileEvent, ...]
    lost_before: datetime | None
    is_last: bool = False


@dataclass(slots=True)
class _ListingPass:
    started: float = field(default_factory=time.monotonic)
    listed: int = 0
    new: int = 0
    lost: list[str] = field(default_factory=list)
    is_complete: bool = True
    last_keys: dict[str, str] = field(default_factory=dict)


class Lister:
    """Lists in its own thread, a few pages ahead of the caller, who calls `next_page` and then `record_append`.

    Args:
        storage: access to the buckets; the bucket named in it is ignored.
        queue_backlog: returns the approximate number of waiting messages; None without a queue. While messages wait, no
            object is reported as lost, because its message may be among them.
        keys_grow: new objects have greater keys than older ones. A pass requested before it is due then lists only
            keys after the greatest one.
    """

    def __init__(
        self,
        spec: RelaySpec,
        listing: ListingSpec,
        storage: StorageSpec,
        objects: ObjectStore,
        *,
        queue_backlog: Callable[[], int] | None,
        max_examples: int = 10,
        keys_grow: bool = False,
    ) -> None:
        self._spec = spec
        self._listing = listing
        self._storage = storage
        self._objects = objects
        self._queue_backlog = queue_backlog
        self._max_examples = max_examples
        self._keys_grow = keys_grow
        self._pages: queue.Queue[ListedPage] = queue.Queue(maxsize=_PAGES_AHEAD)
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._pass = _ListingPass()
        self._record = ListingRecord(first_started_at=iso_now())
        #: Completed passes of this instance.
        self.passes = 0
        self._thread = threading.Thread(target=self._run, name="lister", daemon=True)

    @property
    def record(self) -> ListingRecord:
        """The state of the listings."""
        return self._record

    def start(self) -> None:
        """Starts the thread. The time of the first start is stored before anything is listed."""
        record = read_listing_record(self._objects, self._spec.relay)
        if record is None:
            self._write(self._record)
        else:
            self._record = record
        self._thread.start()

    def next_page(self, *, timeout_seconds: float) -> ListedPage | None:
        """Returns the next page; None if none is ready within `timeout_seconds`.

        Raises:
            ConfigError, ClientError, BotoCoreError: the error that ended the listing.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._pages.get(timeout=timeout_seconds) if timeout_seconds else self._pages.get_nowait()
        except queue.Empty:
            return None

    @property
    def has_page(self) -> bool:
        """Whether a page is ready."""
        return not self._pages.empty()

    def record_append(self, page: ListedPage, new: int, lost: list[str]) -> None:
        """Records that a page was appended to the log. After the last page of a pass, stores the listing record."""
        current = self._pass
        current.listed += len(page.events)
        current.new += new
        current.lost += lost
        if not page.is_last:
            return
        self._record = self._record.replace(
            passes=self._record.passes + 1,
            last_pass_at=iso_now() if current.is_complete else self._record.last_pass_at,
            last_keys=self._record.last_keys | current.last_keys,
            seconds=round(time.monotonic() - current.started, 3),
            listed=current.listed,
            new=current.new,
            lost=len(current.lost),
            lost_examples=tuple(current.lost[: self._max_examples]),
        )
        self._write(self._record)
        self._pass = _ListingPass()
        self.passes += 1

    def close(self) -> None:
        """Stops listing; an unfinished pass is discarded."""
        self._closed.set()

    def _write(self, record: ListingRecord) -> None:
        key = relay_listing(self._spec.relay)
        retry_outages(
            lambda: self._objects.put(key, record.encode()),
            retry_seconds=_RETRY_SECONDS,
            cancelled=self._closed,
        )

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                if self._is_due():
                    self._objects.delete(_request_key(self._spec.relay))
                    completed_passes = self.passes
                    for page in self._list_buckets():
                        self._enqueue(page)
                    while self.passes == completed_passes and not self._closed.wait(0.1):
                        pass
                self._closed.wait(_POLL_SECONDS)
        except Exception as error:  # re-raised in the relay, which classifies it
            self._failure = error

    def _is_due(self) -> bool:
        if is_listing_due(self._record, self._listing):
            return True
        try:
            return is_listing_requested(self._objects, self._spec.relay)
        except DeltaworksError:  # checked again within seconds
            return False

    def _list_buckets(self) -> Iterator[ListedPage]:
        self._pass.started = time.monotonic()
        self._pass.is_complete = not self._keys_grow or is_listing_due(self._record, self._listing)
        lost_before = self._lost_before()
        ignore_before = None if self._listing.include_existing else parse_iso(self._record.first_started_at)
        for bucket in self._spec.buckets:
            pages = list_pages(
                self._storage,
                bucket,
                prefix=self._listing.prefix,
                glob=self._listing.glob,
                start_after="" if self._pass.is_complete else self._record.last_keys.get(bucket, ""),
                versions=self._spec.overwrites == "every_version",
                retry_seconds=_RETRY_SECONDS,
                cancelled=self._closed,
            )
            for events in pages:
                if events:
                    last_key = max(self._pass.last_keys.get(bucket, ""), events[-1].key)
                    self._pass.last_keys[bucket] = max(last_key, self._record.last_keys.get(bucket, ""))
                relevant = tuple(
                    event for event in events if ignore_before is None or event.event_time >= ignore_before
                )
                yield ListedPage(relevant, lost_before)
        yield ListedPage((), lost_before, is_last=True)

    def _lost_before(self) -> datetime | None:
        """Returns the time before which an object must have been announced. None if that is unknown: during the first
        pass, whose objects are older than the relay, and while the queue has a backlog.
        """
        if self._queue_backlog is None or not self._record.passes or self._queue_backlog():
            return None
        return utc_now() - timedelta(minutes=self._listing.grace_minutes)

    def _enqueue(self, page: ListedPage) -> None:
        while not self._closed.is_set():
            try:
                self._pages.put(page, timeout=0.2)
                return
            except queue.Full:
                continue
