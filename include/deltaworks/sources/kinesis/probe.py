"""Looks, from the driver, whether idle shards have anything new: Kinesis does not tell a shard's newest record."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime

from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.calls import IteratorExpired, ShardGone, StreamCalls
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shard_pages import micros

_THREADS = 8
_PATIENCE_SECONDS = 3.0
#: A shard with few records answers empty pages before its tip; beyond so many a task goes on.
_MOST_PAGES = 10


class Probe:
    """Asks shards for one record behind their positions. Iterators are kept, so an idle shard costs one read."""

    def __init__(self, stream: StreamCalls, *, exclusive: bool = False) -> None:
        """`exclusive`: tasks share the reads of a shard with nobody, so that one that throttles is worth a batch."""
        self._stream = stream
        self._exclusive = exclusive
        self._iterators: dict[str, tuple[tuple[str | None, datetime | None], str]] = {}
        self._lock = threading.Lock()
        self.tips: dict[str, datetime] = {}

    def reset(self, tips: Mapping[str, datetime]) -> None:
        """Begin again at other positions. `tips` are times until which shards are known to have held nothing more."""
        self._iterators.clear()
        self.tips = dict(tips)

    def any(self, positions: Mapping[str, Position], *, until: datetime | None) -> bool:
        """Whether a task would find something in one of the shards; those found at their tip are in `tips`.

        Args:
            until: records that arrived later do not count, and a shard that throttles counts as one with records.
        """
        if not positions:
            return False
        with ThreadPoolExecutor(min(_THREADS, len(positions))) as pool:
            looks = [pool.submit(self._one, shard, position, until) for shard, position in positions.items()]
            any_new = False
            for answer in as_completed(looks):
                if not answer.cancelled() and answer.result():
                    any_new = True
                    for other in looks:
                        other.cancel()
            return any_new

    def _one(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        try:
            return self._look(shard_id, position, until)
        except TransientError:
            # Throttled, by other readers most likely: the next look is soon, and listing shards shows an outage.
            return until is not None or self._exclusive
        except ShardGone:
            return True

    def _look(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        kept, place = self._iterators.get(shard_id), (position.after, position.at)
        iterator = kept[1] if kept and kept[0] == place else self._stream.iterator(shard_id, position)
        for _ in range(_MOST_PAGES):
            asked_at = self._stream.now()
            try:
                page = self._stream.records(iterator, 1, patience_seconds=_PATIENCE_SECONDS)
            except IteratorExpired:
                iterator = self._stream.iterator(shard_id, position)
                continue
            if len(page):
                later = until is not None and page.arrivals[0] > micros(until)
                if later:
                    self._note_tip(shard_id, until or asked_at)
                return not later
            if page.next_iterator is None:
                return True
            iterator = page.next_iterator
            self._iterators[shard_id] = (place, iterator)
            if not page.behind_ms:
                self._note_tip(shard_id, asked_at)
                return False
        return True

    def _note_tip(self, shard_id: str, at: datetime) -> None:
        with self._lock:
            self.tips[shard_id] = max(at, self.tips.get(shard_id, at))
