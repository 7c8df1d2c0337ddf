"""Appends received messages and listed objects to the file event log, then deletes the messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from deltaworks.control.clock import utc_now
from deltaworks.control.records.replacements import Replacements
from deltaworks.sources.objects.file_event_log_writer import (
    FileEventLogWriter,
    PendingAppend,
    QuarantinedMessage,
    ReceivedEvent,
)
from deltaworks.sources.objects.relay.intake import Intake
from deltaworks.sources.objects.relay.lister import ListedPage
from deltaworks.sources.objects.relay.messages import FileEvent, parse_message
from deltaworks.sources.objects.relay.queue import MAX_BATCH_MESSAGES, Message, NotificationQueue
from deltaworks.sources.outages import retry_outages
from deltaworks.specs.relay import RelaySpec

_LOG_RETRY_SECONDS = 300.0
#: Maximum number of lost objects named in a report.
MAX_EXAMPLES = 10


@dataclass(slots=True)
class RelayCounts:
    """Counters of a relay since its start.

    - `redelivered`: messages that had been delivered before.
    - `expired_receipts`, `extend_expired`: messages that could not be deleted or extended because their receipt had
      expired.
    - `saturated`: receives that SQS refused because too many messages were in flight.
    - `lost`: listed objects that were never announced.
    """

    messages: int = 0
    events: int = 0
    duplicates: int = 0
    quarantined: int = 0
    appends: int = 0
    deleted: int = 0
    expired_receipts: int = 0
    delete_failed: int = 0
    redelivered: int = 0
    extended: int = 0
    extend_expired: int = 0
    saturated: int = 0
    listed: int = 0
    lost: int = 0
    ignored: Counter[str] = field(default_factory=Counter)


class Appender:
    """Appends to an open file event log. Not thread-safe."""

    def __init__(
        self,
        spec: RelaySpec,
        writer: FileEventLogWriter,
        counts: RelayCounts,
        *,
        deleters: ThreadPoolExecutor,
        cancelled: threading.Event,
        replacements: Replacements,
    ) -> None:
        self._spec = spec
        self._writer = writer
        self._counts = counts
        self._deleters = deleters
        self._cancelled = cancelled
        self._replacements = replacements

    @property
    def append_number(self) -> int:
        """The number of the last append."""
        return self._writer.append_number

    def append_messages(self, messages: Sequence[Message], queue: NotificationQueue, intake: Intake) -> None:
        """Appends the file events of the messages, then deletes the messages.

        A message about an object that an erasure may have rewritten stays in the queue until the new ETag is recorded.
        """
        self._reload_rewritten_objects()
        events, quarantined, deferred = self._parse(messages)
        self._append(events, quarantined)
        self._counts.messages += len(messages)
        if deferred:
            deferred_ids = {id(message) for message in deferred}
            intake.release(deferred)
            messages = [message for message in messages if id(message) not in deferred_ids]
        batches = [
            messages[start : start + MAX_BATCH_MESSAGES] for start in range(0, len(messages), MAX_BATCH_MESSAGES)
        ]
        for outcome in self._deleters.map(queue.delete, batches):
            self._counts.deleted += outcome.succeeded
            self._counts.expired_receipts += outcome.expired
            self._counts.delete_failed += outcome.failed
        intake.release(messages)

    def append_page(self, page: ListedPage) -> tuple[int, list[str]]:
        """Appends the listed objects that the log lacks. Returns their number, and the keys of those that were never
        announced.
        """
        now = utc_now()
        self._reload_rewritten_objects()
        events = [event for event in page.events if not self._may_be_replacement(event)]
        pending = self._append([ReceivedEvent(event, "", now, "listing") for event in events])
        lost = _older_than(pending, page.lost_before)
        self._counts.listed += len(page.events)
        self._counts.lost += len(lost)
        return pending.events.num_rows, lost

    def _reload_rewritten_objects(self) -> None:
        retry_outages(self._replacements.refresh, retry_seconds=_LOG_RETRY_SECONDS, cancelled=self._cancelled)

    def _may_be_replacement(self, event: FileEvent) -> bool:
        return self._replacements.may_be_replacement(event.bucket, event.key, event.etag)

    def _with_original_identity(self, received: ReceivedEvent) -> ReceivedEvent:
        """Returns the event with the ETag of the original object, if an erasure rewrote the object."""
        event = received.event
        original = self._replacements.original(event.bucket, event.key, event.etag)
        if original is None:
            return received
        landed = replace(event, etag=original.etag, version_id=original.version_id)
        return replace(received, event=landed)

    def _parse(
        self, messages: Sequence[Message]
    ) -> tuple[list[ReceivedEvent], list[QuarantinedMessage], list[Message]]:
        events: list[ReceivedEvent] = []
        deferred: list[Message] = []
        quarantined: list[QuarantinedMessage] = []
        for message in messages:
            parsed = parse_message(message.body, buckets=self._spec.buckets)
            if any(map(self._may_be_replacement, parsed.events)):
                deferred.append(message)
                continue
            events += (ReceivedEvent(event, message.message_id, message.received_at) for event in parsed.events)
            self._counts.ignored.update(parsed.ignored)
            if parsed.problems:
                quarantined.append(
                    QuarantinedMessage(message.message_id, message.body, parsed.reason, message.received_at)
                )
        return events, quarantined, deferred

    def _append(self, events: Sequence[ReceivedEvent], messages: Sequence[QuarantinedMessage] = ()) -> PendingAppend:
        pending = self._writer.prepare([self._with_original_identity(event) for event in events], messages)
        retry_outages(lambda: self._writer.commit(pending), retry_seconds=_LOG_RETRY_SECONDS, cancelled=self._cancelled)
        self._counts.events += pending.events.num_rows
        self._counts.duplicates += pending.duplicates
        self._counts.quarantined += pending.messages.num_rows
        self._counts.appends += not pending.is_empty
        return pending


def _older_than(pending: PendingAppend, cutoff: datetime | None) -> list[str]:
    if cutoff is None:
        return []
    rows = zip(*(pending.events.column(name).to_pylist() for name in ("bucket", "key", "event_time")), strict=True)
    return [f"{bucket}/{key}" for bucket, key, at in rows if at < cutoff]
