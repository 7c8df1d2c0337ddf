"""One feed: detects changed rows, delivers them, resumes and replays deliveries, and retains the data for replays."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta

from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.feeds import Delivery, DeliveryRecord, FeedRecord, FeedRecords, Position
from deltaworks.errors import ContractError
from deltaworks.feeds.delivery import DeliveryRun, completed_record
from deltaworks.feeds.feed_source import FeedSource, TableSource, open_feed_source
from deltaworks.feeds.sinks import Sink
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.feeds import FeedSpec
from deltaworks.specs.pipeline import PipelineSpec

log = logging.getLogger(__name__)
#: Time that versions are claimed in addition to the replay window. The claim is renewed hourly.
_EXTRA_CLAIM_HOURS = 48
_CLAIM_INTERVAL = timedelta(hours=1)


class Feed:
    """One feed of a pipeline. Used by one thread.

    Args:
        sink: the destination; opened and closed by the caller.
        pause: waits, and raises `StopRequested` when the process is to stop.
        on_failure: called with the reason when messages fail.
    """

    def __init__(
        self,
        catalog: Catalog,
        spec: PipelineSpec,
        feed: FeedSpec,
        objects: ObjectStore,
        sink: Sink,
        *,
        pause: Callable[[float], None] = lambda seconds: None,
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.name = f"{spec.pipeline}.{feed.name}"
        self._feed = feed
        self._home = PipelineHome(objects, spec.pipeline)
        self._objects = objects
        self._records = FeedRecords(objects, spec.pipeline, feed.name)
        self._source: FeedSource = open_feed_source(catalog, spec, feed, objects, self._records)
        self._delivery_run = DeliveryRun(feed, self.name, self._records, sink, pause=pause, on_failure=on_failure)
        self._claimed_at = utc_now() - 2 * _CLAIM_INTERVAL

    def run_once(self) -> FeedRecord:
        """Completes the current delivery, delivers new changes and requested replays. Returns the feed's record.

        Raises:
            StopRequested: raised by `pause`.
            ContractError: FEED_POSITION_UNAVAILABLE, FEED_COLUMN_MISSING, FEED_SOURCE_UNREADABLE, FEED_TOO_MANY_ROWS,
                FEED_TOO_MANY_DEAD_LETTERS, FEED_RECORD_UNREADABLE.
            ConfigError: FEED_SINK_REFUSED.
            FencedError: FEED_TAKEN_OVER.
            TransientError: the storage is unreachable.
        """
        record = self._records.read() or self._create_record()
        request = self._records.replay_request()
        resend_all = request is not None and request.since is None
        if record.current_delivery is not None:
            record = self._complete_or_abandon(record) if resend_all else self._complete(record)
        if request is not None:
            if request.since is None:
                record = self._deliver_all_rows(record)
            else:
                record = self._replay(record, since=request.since)
            self._records.cancel_replay()
        record = self._deliver_changes(record)
        self._apply_retention(record)
        return record

    def _create_record(self) -> FeedRecord:
        """Creates the record of a new feed."""
        current = self._source.current()
        empty = Position(kind=current.kind)
        return self._records.write(FeedRecord.initial(empty if self._feed.start == "all" else current))

    def _deliver_changes(self, record: FeedRecord) -> FeedRecord:
        target = self._source.current()
        if target == record.position:
            return record
        if not self._source.may_differ(record.position, target):
            # Files were rewritten, but no row changed.
            return self._records.write(record.replace(position=target))
        return self._deliver(record, base=record.position, target=target)

    def _deliver_all_rows(self, record: FeedRecord) -> FeedRecord:
        """Delivers pending changes, including deletions, and then every row in a separate delivery.

        If the pending changes are no longer available, that delivery is abandoned and its deletions are not sent.
        """
        try:
            record = self._deliver_changes(record)
        except ContractError as error:
            record = self._abandon(error)
        target = self._source.current()
        return self._deliver(record, base=Position(kind=target.kind), target=target)

    def _deliver(self, record: FeedRecord, *, base: Position, target: Position) -> FeedRecord:
        delivery = Delivery(number=record.number + 1, base=base, target=target, started_at=iso_now())
        since = record.pending_since or self._source.pending_since(base, target)
        return self._complete(self._records.write(record.replace(current_delivery=delivery, pending_since=since)))

    def _replay(self, record: FeedRecord, *, since: int) -> FeedRecord:
        """Repeats all deliveries since a delivery number, in order, with their original message ids."""
        deliveries = [
            item.delivery for item in self._records.deliveries() if since <= item.delivery.number <= record.number
        ]
        for delivery in deliveries:
            repeated = delivery.replace(sent_changes=0, dead_letters=0, replay_of=delivery.number)
            record = self._complete(self._records.write(record.replace(current_delivery=repeated)))
        return record

    def _complete(self, record: FeedRecord) -> FeedRecord:
        """Completes the current delivery."""
        delivery = record.current_delivery
        if delivery is None:
            return record
        changes = self._source.changes(delivery.base, delivery.target, skip=delivery.sent_changes)
        with contextlib.closing(changes):
            record = self._delivery_run.deliver(record, changes)
        if record.current_delivery is not None and record.current_delivery.replay_of is None:
            self._records.record_delivery(record.current_delivery)
        return self._records.write(completed_record(record))

    def _complete_or_abandon(self, record: FeedRecord) -> FeedRecord:
        try:
            return self._complete(record)
        except ContractError as error:
            return self._abandon(error)

    def _abandon(self, error: ContractError) -> FeedRecord:
        """Abandons a delivery whose source states are no longer available. Its number is not reused.

        Raises:
            ContractError: the given error, if it has another cause.
        """
        record = self._records.read() if error.condition == "FEED_POSITION_UNAVAILABLE" else None
        if record is None:
            raise error
        delivery = record.current_delivery
        number = record.number if delivery is None else max(record.number, delivery.number)
        return self._records.write(record.replace(current_delivery=None, number=number))

    def _apply_retention(self, record: FeedRecord) -> None:
        """Claims the versions that the next delivery and replays need, and deletes older records."""
        oldest = utc_now() - timedelta(hours=self._feed.replay_hours)
        retained: list[DeliveryRecord] = []
        for item in self._records.deliveries():
            at = parse_iso(item.ended_at)
            if at is not None and at < oldest:
                self._records.delete_delivery(item)
            else:
                retained.append(item)
        positions = [
            record.position,
            *(item.delivery.base for item in retained),
            *(item.delivery.target for item in retained),
        ]
        if isinstance(self._source, TableSource):
            self._claim_versions(positions)
            return
        referenced = {self._records.view_result_key(position.digest) for position in positions}
        for key in self._records.view_result_keys():
            if key not in referenced:
                self._objects.delete(key)

    def _claim_versions(self, positions: list[Position]) -> None:
        versions = [position.version for position in positions if not position.is_empty]
        if versions and utc_now() - self._claimed_at >= _CLAIM_INTERVAL:
            hours = min(self._feed.replay_hours + _EXTRA_CLAIM_HOURS, 720)
            self._home.readers.pin(
                self._feed.reads, reader=f"feed_{self._feed.name}", version=min(versions), hours=hours
            )
            self._claimed_at = utc_now()
