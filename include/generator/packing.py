"""Packs records into the objects of a delivery stream: concatenated, gzipped, with keys by hour."""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from uuid import UUID

from generator.delivery import Delivery
from generator.records import Record
from generator.settings import GamesSettings
from generator.truth import TruthCounter

_GZIP_LEVEL = 1


class ObjectPacker:
    """Collects records in order of delivery and closes an object when it is full or its buffer time has elapsed.

    Two rules make the expected results unambiguous. Records that break framing are never adjacent: the second waits for
    a readable record in between. The second copy of an event waits until `min_copy_distance_files` objects have begun
    after its first; a copy still waiting at the end is not sent.
    """

    def __init__(self, settings: GamesSettings, rng: Random, counter: TruthCounter) -> None:
        self._settings = settings
        self._rng = rng
        self._counter = counter
        self._index = 0
        self._pieces: list[Record] = []
        self._opened_at = 0.0
        self._last_at = 0.0
        self._deferred_copies: dict[int, list[Record]] = {}
        self._deferred_breaks: deque[Record] = deque()

    def add(self, record: Record) -> Iterator[Delivery]:
        """Adds the next record in order of delivery; yields the objects it closes."""
        closes_at = self._opened_at + self._settings.buffer_seconds
        if self._pieces and record.deliver_at >= closes_at:
            yield self._close_object(closes_at)
        if not self._pieces:
            self._opened_at = record.deliver_at
            self._pieces = self._deferred_copies.pop(self._index, [])
        self._last_at = record.deliver_at
        self._add_piece(record)
        if len(self._pieces) >= self._settings.events_per_file:
            yield self._close_object(self._last_at)

    def finish(self) -> Iterator[Delivery]:
        """Closes the open object."""
        if self._pieces:
            yield self._close_object(self._last_at)

    def _add_piece(self, record: Record) -> None:
        if record.breaks_framing and self._pieces and self._pieces[-1].breaks_framing:
            self._deferred_breaks.append(record)
        elif not self._defer_copy(record):
            self._pieces.append(record)
            if self._deferred_breaks and not record.breaks_framing:
                self._pieces.append(self._deferred_breaks.popleft())

    def _defer_copy(self, record: Record) -> bool:
        copies = record.copy_pair
        if copies is None:
            return False
        if copies.first_file is None:
            copies.first_file = self._index
            return False
        first_allowed_index = copies.first_file + self._settings.min_copy_distance_files
        if self._index >= first_allowed_index:
            return False
        self._deferred_copies.setdefault(first_allowed_index, []).append(record)
        return True

    def _close_object(self, at: float) -> Delivery:
        body = gzip.compress(b"".join([record.raw for record in self._pieces]), _GZIP_LEVEL, mtime=0)
        opened_at = datetime.fromtimestamp(int(self._opened_at), UTC)
        object_id = UUID(int=self._rng.getrandbits(128), version=4)
        delivery = Delivery(
            key=f"{self._settings.prefix}{opened_at:%Y/%m/%d/%H}/deltaworks-games-1-{opened_at:%Y-%m-%d-%H-%M-%S}-{object_id}.gz",
            body=body,
            events=len(self._pieces),
            delivered_at=datetime.fromtimestamp(at, UTC),
        )
        self._counter.count_file(self._index, self._pieces, len(body))
        self._index += 1
        self._pieces = []
        return delivery
