"""Delivers the changes between two positions in chunks: at least once, in key order.

A chunk is sent until the sink has accepted or finally rejected every message; only failed messages are sent again. Then
the progress is recorded, and the next chunk starts. So a newer row of a key is never sent before the result of an older
one is known, and a crash repeats at most one chunk.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deltaworks.control.backoff import wait_seconds
from deltaworks.control.clock import iso_now
from deltaworks.control.records.feeds import Delivery, FeedRecord, FeedRecords
from deltaworks.errors import ContractError
from deltaworks.feeds.messages import Change, DeadReason, Message, build_message, key_problem
from deltaworks.feeds.sinks.base import Sink
from deltaworks.specs.feeds import FeedSpec

log = logging.getLogger(__name__)
#: Messages per chunk, which is also the maximum that a crash repeats.
CHUNK_SIZE = 500
#: Maximum wait before failed messages are sent again.
_MAX_RETRY_SECONDS = 60.0
#: Maximum size of a message stored with its dead letter.
_MAX_LETTER_BYTES = 256 * 1024


class StopRequested(Exception):
    """Raised if the process is asked to stop. The record contains the position to resume from."""


class DeliveryRun:
    """One delivery of one feed, new or resumed. Used by one thread.

    Args:
        pause: waits, and raises `StopRequested` when the process is to stop.
        on_failure: called with the reason when messages fail.
    """

    def __init__(
        self,
        feed: FeedSpec,
        name: str,
        records: FeedRecords,
        sink: Sink,
        *,
        pause: Callable[[float], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._feed, self._name = feed, name
        self._records, self._sink = records, sink
        self._pause, self._on_failure = pause, on_failure

    def deliver(self, record: FeedRecord, changes: Iterator[Change]) -> FeedRecord:
        """Sends the remaining changes of the current delivery. Returns the record as stored.

        Args:
            changes: the remaining changes, in key order.

        Raises:
            StopRequested: before the next chunk.
            ContractError: FEED_TOO_MANY_DEAD_LETTERS.
            ConfigError: FEED_SINK_REFUSED.
            FencedError: FEED_TAKEN_OVER.
        """
        delivery = record.current_delivery
        if delivery is None:
            return record
        self._check_dead_letters(delivery)
        for chunk in _chunks(changes):
            self._pause(0)
            letters = self._send_chunk(chunk, delivery, record.incarnation)
            if letters:
                # Before the progress is recorded: a dead letter may be stored twice, but is never lost.
                self._records.store_dead_letters(delivery.number, delivery.sent_changes, letters)
            delivery = delivery.replace(
                sent_changes=delivery.sent_changes + len(chunk), dead_letters=delivery.dead_letters + len(letters)
            )
            record = self._records.write(
                record.replace(
                    current_delivery=delivery,
                    changes=record.changes + len(chunk),
                    dead_letters=record.dead_letters + len(letters),
                )
            )
            self._check_dead_letters(delivery)
        return record

    def _send_chunk(self, chunk: Sequence[Change], delivery: Delivery, incarnation: str) -> list[dict[str, Any]]:
        """Sends one chunk; returns its dead letters."""
        letters = []
        pending: dict[str, Message] = {}
        for change in chunk:
            item = build_message(change, feed=self._name, incarnation=incarnation, delivery=delivery)
            problem = key_problem(change)
            if problem is None:
                pending[item.id] = item
            else:
                letters.append(_dead_letter(item, *problem))
        failures = 0
        while pending:
            outcome = self._sink.send(list(pending.values()))
            letters += [
                _dead_letter(pending[name], reason, detail) for name, (reason, detail) in outcome.rejected.items()
            ]
            delivered = len(pending) - len(outcome.failed) - len(outcome.rejected)
            pending = {name: pending[name] for name in outcome.failed}
            if not pending:
                break
            # The backoff does not grow while some messages are accepted.
            failures = 1 if delivered else failures + 1
            failure = next(iter(outcome.failed.values()))
            log.warning("feed=%s %d of %d messages failed: %s", self._name, len(pending), len(chunk), failure)
            self._on_failure(f"{len(pending)} messages failed and are retried: {failure}")
            self._pause(min(wait_seconds(failures) / 5, _MAX_RETRY_SECONDS))
        return letters

    def _check_dead_letters(self, delivery: Delivery) -> None:
        if delivery.dead_letters <= self._feed.max_dead_letters:
            return
        arguments = self._name.replace(".", " ")
        raise ContractError(
            "FEED_TOO_MANY_DEAD_LETTERS",
            f"Delivery {delivery.number} of feed {self._name} has {delivery.dead_letters:,} dead letters, more than "
            f"max_dead_letters ({self._feed.max_dead_letters:,}).",
            hint=f"Read the reasons with `deltaworks feeds dead-letters {arguments}`. Fix the receiver or the rows, or "
            f"raise max_dead_letters, and restart the feeds. Then run `deltaworks feeds replay {arguments} --since "
            f"{delivery.number}` to send the delivery again.",
        )


def completed_record(record: FeedRecord) -> FeedRecord:
    """Returns a copy of the record with its current delivery marked as completed."""
    delivery = record.current_delivery
    if delivery is None:
        return record
    repeats = delivery.replay_of is not None
    return record.replace(
        number=record.number if repeats else delivery.number,
        position=record.position if repeats else delivery.target,
        current_delivery=None,
        delivered_at=iso_now(),
        pending_since=record.pending_since if repeats else None,
    )


def _chunks(changes: Iterator[Change]) -> Iterator[list[Change]]:
    while part := list(itertools.islice(changes, CHUNK_SIZE)):
        yield part


def _dead_letter(item: Message, reason: DeadReason, detail: str) -> dict[str, Any]:
    letter: dict[str, Any] = {"id": item.id, "key": item.key, "op": item.op, "reason": str(reason), "detail": detail}
    if len(item.body) <= _MAX_LETTER_BYTES:
        return {**letter, "message": json.loads(item.body)}
    return {**letter, "bytes": len(item.body)}
