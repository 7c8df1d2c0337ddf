"""What is on record of a feed: how far it has delivered, what is under way, and the deliveries that can be repeated.

One object says where a feed is. It is replaced only as it was read, so that a former owner which wakes up late changes
nothing. A delivery is fixed there before its first row is sent, with the positions it leads from and to: whoever
resumes it sends the same changes under the same ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from deltaworks.control import outbound_paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import FencedError

_UNREADABLE = RecordKind(
    noun="record of a feed",
    unreadable_condition="FEED_RECORD_UNREADABLE",
    hint="Restore it from the storage's versions. Without it the feed begins anew, as `from` says.",
)


class Position(RecordPart):
    """A state of what a feed reads: a version of a table, or an answer of a view by its digest.

    A version of -1 and an empty digest are what is not there yet: no rows.
    """

    kind: Literal["table", "view"]
    table_id: str = ""
    version: int = -1
    digest: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it is the state before there was anything to read."""
        return self.version < 0 if self.kind == "table" else not self.digest

    def __str__(self) -> str:
        if self.is_empty:
            return "nothing"
        return f"version {self.version}" if self.kind == "table" else f"answer {self.digest[:12]}"


class Delivery(RecordPart):
    """What lies between two positions. `sent` changes of it, in the order of keys, are with the sink or dead letters.

    `repeats` is the number of the delivery that it repeats, whose ids it uses.
    """

    number: int
    base: Position
    target: Position
    started_at: str
    sent_changes: int = 0
    dead_letters: int = 0
    replay_of: int | None = Field(default=None, exclude_if=lambda value: value is None)


class FeedRecord(Record):
    """Where a feed is. `incarnation` is part of ids, so that a feed that began anew repeats none of the first one's."""

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
        """A feed that has delivered nothing."""
        return cls(incarnation=uuid.uuid4().hex[:12], number=0, position=position)


class DeliveryRecord(Record):
    """A delivery that is complete."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    delivery: Delivery
    ended_at: str


class ReplayRequest(Record):
    """A person's word that deliveries be repeated from number `since` on, or every row be sent (`since` None)."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    since: int | None
    by: str
    at: str


class DeadLetters(Record):
    """Changes that a sink refuses for good, each a message with a `reason` and what the sink said."""

    kind: ClassVar[RecordKind] = _UNREADABLE

    number: int
    letters: tuple[dict[str, Any], ...]


class FeedRecords:
    """The records of one feed. Used by its process; others only read, and ask for replays."""

    def __init__(self, objects: ObjectStore, pipeline: str, feed: str) -> None:
        self._objects = objects
        self._pipeline, self._feed = pipeline, feed
        self._etag: str | None = None

    def _key(self, name: str) -> str:
        return outbound_paths.feed(self._pipeline, self._feed, name)

    def read(self) -> FeedRecord | None:
        """Where the feed is; None where it has not begun.

        Raises:
            ContractError: FEED_RECORD_UNREADABLE.
        """
        stored = self._objects.get(self._key("position.json"))
        self._etag = None if stored is None else stored.etag
        return None if stored is None else FeedRecord.decode(stored.data, key=self._key("position.json"))

    def write(self, record: FeedRecord) -> FeedRecord:
        """Replace what was read last.

        Raises:
            FencedError: FEED_TAKEN_OVER, somebody else has written since.
        """
        key, data = self._key("position.json"), record.encode()
        if self._etag is None:
            created = self._objects.put_if_absent(key, data)
            self._etag = self._objects.etag(key) if created else None
        else:
            self._etag = self._objects.put_if_match(key, data, self._etag)
        if self._etag is None:
            raise FencedError(
                "FEED_TAKEN_OVER",
                f"Another process delivers the feed {self._pipeline}.{self._feed} now.",
                hint="None: the other one goes on where this one was.",
            )
        return record

    def record_delivery(self, delivery: Delivery) -> None:
        """Keep a complete delivery, for replays. Idempotent."""
        record = DeliveryRecord(delivery=delivery, ended_at=iso_now())
        RecordStore(self._objects, DeliveryRecord).create(self._key(f"deliveries/{delivery.number:012d}.json"), record)

    def deliveries(self) -> Iterator[DeliveryRecord]:
        """The complete deliveries that are still on record, the oldest first."""
        store = RecordStore(self._objects, DeliveryRecord)
        for key in self._objects.list(self._key("deliveries") + "/"):
            if (record := store.read(key)) is not None:
                yield record

    def delete_delivery(self, record: DeliveryRecord) -> None:
        """Remove a delivery that cannot be repeated any more."""
        self._objects.delete(self._key(f"deliveries/{record.delivery.number:012d}.json"))

    def request_replay(self, request: ReplayRequest) -> bool:
        """Ask the feed's process for a replay; False where another one is asked for."""
        return RecordStore(self._objects, ReplayRequest).create(self._key("replay.json"), request)

    def replay_request(self) -> ReplayRequest | None:
        """The replay that is asked for."""
        return RecordStore(self._objects, ReplayRequest).read(self._key("replay.json"))

    def cancel_replay(self) -> None:
        """Forget the request."""
        self._objects.delete(self._key("replay.json"))

    def store_dead_letters(self, number: int, offset: int, letters: list[dict[str, Any]]) -> None:
        """Keep dead letters of a part of a delivery. Idempotent: a part that is sent again replaces its own."""
        key = self._key(f"dead/{number:012d}-{offset:012d}.json")
        self._objects.put(key, DeadLetters(number=number, letters=tuple(letters)).encode())

    def dead_letters(self) -> Iterator[DeadLetters]:
        """All that is kept, the oldest first."""
        store = RecordStore(self._objects, DeadLetters)
        for key in self._objects.list(self._key("dead") + "/"):
            if (record := store.read(key)) is not None:
                yield record

    def delete_dead_letters(self) -> int:
        """Remove all dead letters; of how many parts of deliveries they were."""
        keys = self._objects.list(self._key("dead") + "/")
        for key in keys:
            self._objects.delete(key)
        return len(keys)

    def view_result_key(self, digest: str) -> str:
        """Where the answer of a view with this digest is kept."""
        return self._key(f"answers/{digest}.parquet")

    def view_result_keys(self) -> list[str]:
        """The keys of all answers that are kept."""
        return self._objects.list(self._key("answers") + "/")
