"""The process that delivers a pipeline's feeds, with one thread per feed, so that a slow receiver delays no other feed.

A feed detects changed rows, delivers them, and resumes and replays deliveries. A failing feed is retried with backoff
and ends neither the process nor other feeds. Its changes stay available in table versions that it protects from VACUUM,
or in stored view results.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.backoff import MAX_WAIT_SECONDS, wait_seconds
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.feeds import Delivery, DeliveryRecord, FeedRecord, FeedRecords, Position
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, FencedError
from deltaworks.feeds.delivery import DeliveryRun, StopRequested, completed_record
from deltaworks.feeds.feed_source import FeedSource, TableSource, open_feed_source
from deltaworks.feeds.sinks import Sink, open_sink
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.feeds import FeedSpec, SinkSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec

log = logging.getLogger(__name__)
#: Time that versions are claimed in addition to the replay window. The claim is renewed hourly.
_EXTRA_CLAIM_HOURS = 48
_CLAIM_INTERVAL = timedelta(hours=1)
#: A feed that delivers every few seconds has thousands of delivery records; reading them at each check would delay it.
_RETENTION_INTERVAL = timedelta(minutes=10)


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
        self._retention_applied_at = utc_now() - 2 * _RETENTION_INTERVAL

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
        if utc_now() - self._retention_applied_at >= _RETENTION_INTERVAL:
            self._apply_retention(record)
            self._retention_applied_at = utc_now()
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


LEASE_SECONDS = 30.0
MAX_RUN_SECONDS = 14_400.0
STALE_ALERT, DEAD_LETTERS_ALERT = "FEED_STALE", "FEED_DEAD_LETTERS"
#: Interval for raising an alert again while its cause lasts. The alert's rate limits decide when people are notified.
_ALERT_SECONDS = 60.0
_JOIN_SECONDS = 30.0
OpenSink = Callable[[SinkSpec, AwsSpec], Sink]


@dataclass(slots=True)
class FeedCounts:
    """Totals of a run: successful checks, sent changes, dead letters."""

    checks: int = 0
    changes: int = 0
    dead_letters: int = 0


class FeedsProcess:
    """One run of a pipeline's feeds. `run` returns at its time limit or when stopped.

    Args:
        on_tick: called every few seconds, so that a stall is detected.
        open_sink: opens the sink of a feed.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        *,
        on_tick: Callable[[], None] = lambda: None,
        open_sink: OpenSink = open_sink,
        max_run_seconds: float = MAX_RUN_SECONDS,
    ) -> None:
        self._catalog, self._spec = catalog, catalog.pipeline(pipeline)
        if not self._spec.feeds:
            raise ConfigError(
                "PIPELINE_WITHOUT_FEEDS",
                f"{pipeline} declares no feeds.",
                hint=f"Declare them under `feeds` in include/pipelines/{pipeline}/pipeline.yaml.",
            )
        self._objects = open_objects(catalog.environment.lake)
        self._on_tick, self._open_sink = on_tick, open_sink
        self._leased_process = LeasedProcess(
            self._objects,
            paths.feeds_control(pipeline),
            name=dag_id(pipeline, "feeds"),
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=max_run_seconds,
        )
        self._threads = [
            FeedThread(self._catalog, self._spec, feed, self._leased_process, open_sink) for feed in self._spec.feeds
        ]

    def stop(self, *, immediately: bool = False) -> None:
        """Stops after each feed's current chunk. Callable from a signal handler."""
        self._leased_process.stop()

    def run(self) -> FeedCounts:
        """Delivers until the time limit or a stop.

        Raises:
            ConcurrencyError: LEASE_HELD.
            FencedError: LEASE_LOST, a successor has taken over.
        """
        with self._leased_process.hold_lease(on_tick=self._update_heartbeat):
            for thread in self._threads:
                thread.start()
            while not self._leased_process.should_stop:
                self._leased_process.pause(60)
            self._leased_process.stop()
            for thread in self._threads:
                thread.join(_JOIN_SECONDS)
        counts = FeedCounts()
        for thread in self._threads:
            counts.checks += thread.counts.checks
            counts.changes += thread.counts.changes
            counts.dead_letters += thread.counts.dead_letters
        return counts

    def _update_heartbeat(self) -> None:
        self._on_tick()
        pending_times = [thread.pending_since for thread in self._threads if thread.pending_since]
        errors = [thread.error for thread in self._threads if thread.error is not None]
        self._leased_process.heartbeat.update(
            state="running" if pending_times else "idle",
            oldest_pending_at=min(pending_times, default=None),
            rows=sum(thread.counts.changes for thread in self._threads),
            quarantined=sum(thread.counts.dead_letters for thread in self._threads),
            dead_letters=sum(thread.counts.dead_letters for thread in self._threads),
            last_batch_at=max((thread.checked_at for thread in self._threads if thread.checked_at), default=None),
            error=errors[0].as_record() if len(errors) == len(self._threads) else None,
        )


class FeedThread(threading.Thread):
    """Runs one feed and manages its alerts."""

    def __init__(
        self, catalog: Catalog, spec: PipelineSpec, feed: FeedSpec, leased_process: LeasedProcess, open_sink: OpenSink
    ) -> None:
        super().__init__(name=f"feed-{feed.name}", daemon=True)
        self._catalog, self._spec, self._feed = catalog, spec, feed
        self._leased_process, self._open_sink = leased_process, open_sink
        self._objects: ObjectStore = open_objects(catalog.environment.lake)
        self._subject = f"{spec.pipeline}.{feed.name}"
        self._alerts = FeedAlerts(self._objects, self._subject, stale_minutes=feed.stale_minutes)
        self._records = FeedRecords(self._objects, spec.pipeline, feed.name)
        self.counts = FeedCounts()
        self.checked_at: str | None = None
        self.pending_since: str | None = None
        self.error: DeltaworksError | None = None

    def run(self) -> None:
        failures = 0
        sink: Sink | None = None
        feed: Feed | None = None
        with contextlib.suppress(DeltaworksError):
            self._alerts.load(self._records.read())
        while not self._leased_process.should_stop:
            try:
                sink = sink or self._open_sink(self._feed.to, self._catalog.environment.messaging)
                feed = feed or Feed(
                    self._catalog,
                    self._spec,
                    self._feed,
                    self._objects,
                    sink,
                    pause=self._pause,
                    on_failure=self._on_send_failure,
                )
                self._record_success(feed.run_once())
                failures, wait = 0, self._feed.every_seconds
            except StopRequested:
                break
            except FencedError:
                self._leased_process.stop()
                break
            except Exception as error:  # any failure: other feeds continue, and this one is retried
                failures += 1
                self.error = as_deltaworks_error(error)
                log.warning("feed=%s failed: %s", self._subject, self.error)
                self._alert_on_error(self.error)
                feed = None
                wait = min(wait_seconds(failures, retryable=self.error.retryable), MAX_WAIT_SECONDS)
            self._leased_process.pause(wait)
        if sink is not None:
            sink.close()

    def _record_success(self, record: FeedRecord) -> None:
        """Updates the counts and alerts after a successful check."""
        self.counts.checks += 1
        self.checked_at, self.error, self.pending_since = iso_now(), None, record.pending_since
        self.counts.changes, self.counts.dead_letters = record.changes, record.dead_letters
        self._alerts.on_success(record)

    def _pause(self, seconds: float) -> None:
        self._leased_process.pause(seconds)
        if self._leased_process.stopping.is_set() or not self._leased_process.holds_lease:
            raise StopRequested

    def _on_send_failure(self, reason: str) -> None:
        """Handles messages that fail and are retried; raises an alert once they have waited too long."""
        record = self._records.read()
        self.pending_since = record.pending_since if record is not None else None
        self._alerts.on_delay(self.pending_since, reason)

    def _alert_on_error(self, error: DeltaworksError) -> None:
        if error.retryable:
            self._alerts.on_delay(self.pending_since or iso_now(), str(error))
        else:
            self._alerts.on_error(error)


class FeedAlerts:
    """Raises and resolves the alerts of one feed. No method raises an exception."""

    def __init__(self, objects: ObjectStore, subject: str, *, stale_minutes: float) -> None:
        self._objects, self._subject = objects, subject
        self._stale_seconds = 60 * stale_minutes
        self._alerted_at = -math.inf
        self._failing_since: float | None = None
        self._alerted_dead_letters = 0
        self._is_resolved = False

    def load(self, record: FeedRecord | None) -> None:
        """Reads the number of dead letters of earlier runs, for which alerts were already raised."""
        self._alerted_dead_letters = record.dead_letters if record is not None else 0

    def on_success(self, record: FeedRecord) -> None:
        """Resolves the delay alert. Raises an alert for new dead letters."""
        self._failing_since = None
        if not self._is_resolved:
            # An earlier run may have raised it.
            self._try_alert(lambda: resolve_alert(self._objects, cause=STALE_ALERT, subject=self._subject))
            self._is_resolved = True
        if record.dead_letters > self._alerted_dead_letters:
            more = record.dead_letters - self._alerted_dead_letters
            summary = f"{more:,} changes were refused for good and are dead letters; {record.dead_letters:,} in all."
            self._try_alert(
                lambda: raise_alert(self._objects, cause=DEAD_LETTERS_ALERT, subject=self._subject, summary=summary)
            )
        self._alerted_dead_letters = record.dead_letters

    def on_delay(self, since: str | None, reason: str) -> None:
        """Raises an alert if changes have been pending, or checks have been failing, for too long."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        at = parse_iso(since)
        waited = max((utc_now() - at).total_seconds() if at else 0.0, now - self._failing_since)
        if waited >= self._stale_seconds:
            self._raise(f"Changes have waited for {waited / 60:.0f} min: {reason}")

    def on_error(self, error: DeltaworksError) -> None:
        """Raises an alert for an error that needs an operator."""
        self._raise(str(error))

    def _raise(self, summary: str) -> None:
        self._is_resolved = False
        if time.monotonic() - self._alerted_at < _ALERT_SECONDS:
            return
        self._alerted_at = time.monotonic()
        self._try_alert(lambda: raise_alert(self._objects, cause=STALE_ALERT, subject=self._subject, summary=summary))

    def _try_alert(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except DeltaworksError as error:
            log.warning("feed=%s alert could not be stored: %s", self._subject, error)
