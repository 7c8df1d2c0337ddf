"""Delivers what lies between two positions, part by part: at least once, in the order of keys.

A part is sent until the sink has taken every message of it or refused it for good; only what failed is sent again.
Then it is recorded how far the delivery is, and only then does the next part begin. So a key's newer row is never sent
while an older one is under way, and whoever resumes after a crash repeats one part at most.
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
from deltaworks.feeds.changes import Change
from deltaworks.feeds.messages import DeadReason, Message, build_message, key_problem
from deltaworks.feeds.sinks.base import Sink
from deltaworks.specs.feeds import FeedSpec

log = logging.getLogger(__name__)
#: Messages between two records of how far a delivery is; what a crash repeats at most.
CHUNK_SIZE = 500
#: The longest wait before what failed is sent again.
_MAX_RETRY_SECONDS = 60.0
#: Of a message that is too large for its sink, so much is kept as a dead letter.
_MAX_LETTER_BYTES = 256 * 1024


class StopRequested(Exception):
    """The process is asked to end; what is on record says where to go on."""


class DeliveryRun:
    """One delivery of one feed, begun or resumed. For one thread.

    Args:
        pause: waits, and raises `Stopped` where the process is to end. trouble: is told why messages fail.
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
        """Send the changes of `record.under_way` that are not sent yet; the record as it is then on storage.

        Args:
            changes: what is left of the delivery, in the order of keys.

        Raises:
            Stopped: before the next part.
            ContractError: FEED_TOO_MANY_DEAD_LETTERS; ConfigError: FEED_SINK_REFUSED; FencedError: FEED_TAKEN_OVER.
        """
        delivery = record.current_delivery
        if delivery is None:
            return record
        self._check_dead_letters(delivery)
        for chunk in _chunks(changes):
            self._pause(0)
            letters = self._send_chunk(chunk, delivery, record.incarnation)
            if letters:
                # Before the record moves on: a letter is kept twice at worst, and never lost.
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
        """Send one part; the dead letters of it."""
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
            letters += [_dead_letter(pending[name], reason, why) for name, (reason, why) in outcome.rejected.items()]
            delivered = len(pending) - len(outcome.failed) - len(outcome.rejected)
            pending = {name: pending[name] for name in outcome.failed}
            if not pending:
                break
            # Of what is taken bit by bit the wait does not grow.
            failures = 1 if delivered else failures + 1
            why = next(iter(outcome.failed.values()))
            log.warning("feed=%s %d of %d messages failed: %s", self._name, len(pending), len(chunk), why)
            self._on_failure(f"{len(pending)} messages failed, and are sent again: {why}")
            self._pause(min(wait_seconds(failures) / 5, _MAX_RETRY_SECONDS))
        return letters

    def _check_dead_letters(self, delivery: Delivery) -> None:
        if delivery.dead_letters <= self._feed.max_dead_letters:
            return
        words = self._name.replace(".", " ")
        raise ContractError(
            "FEED_TOO_MANY_DEAD_LETTERS",
            f"{delivery.dead_letters:,} changes of delivery {delivery.number} of the feed {self._name} are dead letters, and "
            f"max_dead_letters is {self._feed.max_dead_letters:,}.",
            hint=f"Read why: `deltaworks feeds dead {words}`. Mend the receiver or the rows, raise max_dead_letters, "
            f"restart the feeds; `deltaworks feeds replay {words} --since {delivery.number}` then sends it all again.",
        )


def completed_record(record: FeedRecord) -> FeedRecord:
    """The record once what is under way has been delivered whole."""
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
    letter: dict[str, Any] = {"id": item.id, "key": item.key, "op": item.op, "reason": str(reason), "why": detail}
    if len(item.body) <= _MAX_LETTER_BYTES:
        return {**letter, "message": json.loads(item.body)}
    return {**letter, "bytes": len(item.body)}
