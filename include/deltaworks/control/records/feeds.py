"""Records of a feed: its position, its current delivery, and past deliveries that can be replayed.

One object holds the position. It is replaced by compare-and-swap, so a fenced former owner changes nothing. A delivery
is recorded with its start and end positions before its first row is sent, so a restart sends the same changes under the
same ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import FencedError

_UNREADABLE = RecordKind(
    noun="record of a feed",
    unreadable_condition="FEED_RECORD_UNREADABLE",
    hint="Restore it from the storage's versions. Without it the feed starts again as its `from` declares.",
)


class Position(RecordPart):
    """A position in a feed's input: a version of a table, or the digest of a view's result.

    Version -1 and an empty digest stand for missing input.
    """

    kind: Literal["table", "view"]
    table_id: str = ""
    version: int = -1
    digest: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the input did not exist yet."""
        return self.version < 0 if self.kind == "table" else not self.digest

    def __str__(self) -> str:
        if self.is_empty:
            return "nothing"
        return f"version {self.version}" if self.kind == "table" else f"answer {self.digest[:12]}"


class Delivery(RecordPart):
    """The changes between two positions.

    Changes that were sent or became dead letters are counted in key order by `sent_changes`. A replay has the number of
    the repeated delivery in `replay_of` and reuses its message ids.
    """

    number: int
    base: Position
    target: Position
    started_at: str
    sent_changes: int = 0
    dead_letters: int = 0
    replay_of: int | None = None


class FeedRecord(Record):
    """The state of a feed.

    Message ids contain `incarnation`, so that a restarted feed reuses none.
    """

    kind: ClassVar[RecordKind] = _UNREADABLE

    incarnation: str
    number: int
    position: Position
    current_delivery: Delivery | None = None
    delivered_at: str | None = None
    pending_since: str | None = None
    changes: int = 0
    dead_letters: int = 0

    @classmethod
    def initial(cls, position: Position) -> FeedRecord:
        """Returns the record of a feed that has delivered nothing."""
        return cls(incarnation=uuid.uuid4().hex[:12], number=0, position=position)


class DeliveryRecord(Record):
    """A completed delivery."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    delivery: Delivery
    ended_at: str


class ReplayRequest(Record):
    """A request to repeat deliveries from number `since` on, or to send all rows (`since` None)."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    since: int | None
    by: str
    at: str


class DeadLetters(Record):
    """Changes that the sink permanently rejects, each with its message and the `reason`."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    number: int
    letters: tuple[dict[str, Any], ...]


class FeedRecords:
    """The records of one feed. Only the feed's process writes them; other processes read them and request replays."""

    def __init__(self, objects: ObjectStore, pipeline: str, feed: str) -> None:
        self._objects = objects
        self._pipeline, self._feed = pipeline, feed
        self._etag: str | None = None

    def _key(self, name: str) -> str:
        return paths.feed(self._pipeline, self._feed, name)

    def read(self) -> FeedRecord | None:
        """Reads the feed's state; None if the feed has not started yet.

        Raises:
            ContractError: FEED_RECORD_UNREADABLE.
        """
        stored = self._objects.get(self._key("position.json"))
        self._etag = None if stored is None else stored.etag
        return None if stored is None else FeedRecord.decode(stored.data, key=self._key("position.json"))

    def write(self, record: FeedRecord) -> FeedRecord:
        """Replaces the state that `read` returned last.

        Raises:
            FencedError: FEED_TAKEN_OVER, another process has written since.
        """
        key, data = self._key("position.json"), record.encode()
        if self._etag is None:
            created = self._objects.put_if_absent(key, data)
            self._etag = self._objects.etag(key) if created else None
        else:
            self._etag = self._objects.put_if_match(key, data, self._etag)
        if self._etag is None:
            raise FencedError(
                "FEED_TAKEN_OVER", f"Another process delivers the feed {self._pipeline}.{self._feed} now."
            )
        return record

    def record_delivery(self, delivery: Delivery) -> None:
        """Stores a completed delivery for replays. Idempotent."""
        record = DeliveryRecord(delivery=delivery, ended_at=iso_now())
        RecordStore(self._objects, DeliveryRecord).create(self._key(f"deliveries/{delivery.number:012d}.json"), record)

    def deliveries(self) -> Iterator[DeliveryRecord]:
        """Yields the stored deliveries, oldest first."""
        store = RecordStore(self._objects, DeliveryRecord)
        for key in self._objects.list(self._key("deliveries") + "/"):
            if (record := store.read(key)) is not None:
                yield record

    def delete_delivery(self, record: DeliveryRecord) -> None:
        """Deletes a delivery that can no longer be replayed."""
        self._objects.delete(self._key(f"deliveries/{record.delivery.number:012d}.json"))

    def request_replay(self, request: ReplayRequest) -> bool:
        """Requests a replay; returns False if one is already pending."""
        return RecordStore(self._objects, ReplayRequest).create(self._key("replay.json"), request)

    def replay_request(self) -> ReplayRequest | None:
        """Returns the pending replay request."""
        return RecordStore(self._objects, ReplayRequest).read(self._key("replay.json"))

    def cancel_replay(self) -> None:
        """Deletes the pending request."""
        self._objects.delete(self._key("replay.json"))

    def store_dead_letters(self, number: int, offset: int, letters: list[dict[str, Any]]) -> None:
        """Stores the dead letters of one part of a delivery. Idempotent: repeating a part replaces its dead letters."""
        key = self._key(f"dead/{number:012d}-{offset:012d}.json")
        self._objects.put(key, DeadLetters(number=number, letters=tuple(letters)).encode())

    def dead_letters(self) -> Iterator[DeadLetters]:
        """Yields all stored dead letters, oldest first."""
        store = RecordStore(self._objects, DeadLetters)
        for key in self._objects.list(self._key("dead") + "/"):
            if (record := store.read(key)) is not None:
                yield record

    def delete_dead_letters(self) -> int:
        """Deletes all dead letters; returns the number of affected delivery parts."""
        keys = self._objects.list(self._key("dead") + "/")
        for key in keys:
            self._objects.delete(key)
        return len(keys)

    def view_result_key(self, digest: str) -> str:
        """Returns the key of a stored view result."""
        return self._key(f"results/{digest}.parquet")

    def view_result_keys(self) -> list[str]:
        """Returns the keys of all stored view results."""
        return self._objects.list(self._key("results") + "/")
