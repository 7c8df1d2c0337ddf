"""A model of a Kinesis stream, simple enough to verify by reading, and a state in memory."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from deltaworks.control.objects import StoredObject
from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.kinesis.pages import Page, SubscriptionEnded
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shard_pages import epoch_us
from deltaworks.sources.kinesis.shards import Shard
from deltaworks.sources.kinesis.stream_api import RETRY_SECONDS, Consumer, IteratorExpired, ShardNotFound, StreamSummary

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LARGEST_KEY = (1 << 128) - 1


def options(**changes: str) -> KinesisOptions:
    """Options of a query on the model."""
    return KinesisOptions.parse({"streamName": "games", "stateLocation": "file:///state", **changes})


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


class MemoryObjects:
    """Objects in memory, with the promises of the real stores."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get(self, key: str) -> StoredObject | None:
        data = self.objects.get(key)
        return None if data is None else StoredObject(data, hashlib.sha256(data).hexdigest())

    def etag(self, key: str) -> str | None:
        stored = self.get(key)
        return None if stored is None else stored.etag

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) == data

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        raise NotImplementedError

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


@dataclass(frozen=True)
class Put:
    """A record as it was put."""

    number: int
    key: str
    data: bytes
    arrival: datetime


@dataclass
class ModelShard:
    shard_id: str
    low: int
    high: int
    parents: tuple[str, ...] = ()
    closed_at: datetime | None = None
    records: list[Put] = field(default_factory=list)


class ModelStream:
    """A stream with splits, merges, retention, short and empty pages, expiring iterators and refusals."""

    def __init__(self, shards: int = 1, *, retention: timedelta = timedelta(hours=24)) -> None:
        width = (LARGEST_KEY + 1) // shards
        self.all = [ModelShard(shard_id(n), n * width, (n + 1) * width - 1) for n in range(shards)]
        self.all[-1].high = LARGEST_KEY
        self.retention = retention
        self.time = NOON
        self.created = NOON
        self.page_records = 1000
        self.empty_pages = 0
        self.refuse_next_reads = 0
        self.reads = 0
        self.registered: list[Consumer] = []
        self.subscriptions = 0
        self.events_per_subscription = 1000
        self.scanned_per_event = 0
        self._number = 10**20
        self._iterator_age = 0

    # What happens to a stream.

    def put(self, key: str, data: bytes) -> Put:
        digest = int(hashlib.md5(key.encode()).hexdigest(), 16)
        shard = next(each for each in self.open() if each.low <= digest <= each.high)
        self._number += 7
        self.time += timedelta(milliseconds=1)
        record = Put(self._number, key, data, self.time)
        shard.records.append(record)
        return record

    def open(self) -> list[ModelShard]:
        return sorted((shard for shard in self.all if shard.closed_at is None), key=lambda shard: shard.low)

    def split(self, index: int) -> None:
        shard = self.open()[index % len(self.open())]
        middle = (shard.low + shard.high) // 2
        self._close(shard)
        self._add(shard.low, middle, shard)
        self._add(middle + 1, shard.high, shard)

    def merge(self, index: int) -> None:
        shards = self.open()
        if len(shards) < 2:
            return
        left, right = shards[index % (len(shards) - 1) :][:2]
        self._close(left, right)
        self._add(left.low, right.high, left, right)

    def tick(self, delta: timedelta) -> None:
        """Let time pass: records and closed shards expire."""
        self.time += delta
        horizon = self.time - self.retention
        for shard in self.all:
            shard.records = [record for record in shard.records if record.arrival >= horizon]
        self.all = [shard for shard in self.all if shard.closed_at is None or shard.closed_at >= horizon]

    def expire_iterators(self) -> None:
        self._iterator_age += 1

    def _close(self, *shards: ModelShard) -> None:
        for shard in shards:
            shard.closed_at = self.time

    def _add(self, low: int, high: int, *parents: ModelShard) -> None:
        number = 1 + max(int(shard.shard_id.removeprefix("shardId-")) for shard in self.all)
        self.all.append(ModelShard(shard_id(number), low, high, tuple(parent.shard_id for parent in parents)))

    # What a reader calls.

    def now(self) -> datetime:
        return self.time

    def summary(self) -> StreamSummary:
        return StreamSummary(arn="arn:stream/games", created=self.created, retention=self.retention)

    def shards(self) -> list[Shard]:
        return [Shard(each.shard_id, each.parents, each.closed_at is not None) for each in self.all]

    def iterator(self, shard_id: str, position: Position, *, inclusive: bool = False) -> str:
        shard = self._shard(shard_id)
        after = 0
        if position.after is not None:
            after = int(position.after) - inclusive
        elif position.at is not None:
            whole_second = position.at.replace(microsecond=0)
            after = max((record.number for record in shard.records if record.arrival < whole_second), default=0)
        return self._encoded(shard_id, after)

    def records(self, iterator: str, limit: int, *, retry_seconds: float = RETRY_SECONDS) -> Page:
        self.reads += 1
        if self.refuse_next_reads:
            self.refuse_next_reads -= 1
            raise TransientError("KINESIS_UNREACHABLE", "Throttled.")
        name, after, age = base64.b64decode(iterator).decode().split("|")
        if int(age) != self._iterator_age:
            raise IteratorExpired
        shard = self._shard(name)
        left = [record for record in shard.records if record.number > int(after)]
        given = left[: min(limit, self.page_records)]
        if left and self.empty_pages:
            self.empty_pages -= 1
            given = []
        rest = len(left) - len(given)
        ended = shard.closed_at is not None and not rest
        return Page(
            sequence_numbers=[str(record.number) for record in given],
            partition_keys=[record.key for record in given],
            data=[record.data for record in given],
            arrivals_us=[epoch_us(record.arrival) for record in given],
            next_iterator=None if ended else self._encoded(name, given[-1].number if given else int(after)),
            behind_ms=rest,
        )

    def consumer(self, name: str) -> Consumer | None:
        return next((each for each in self.registered if each.name == name), None)

    def register_consumer(self, name: str) -> None:
        arn = f"arn:consumer/{name}:{len(self.registered)}"
        self.registered.append(Consumer(name=name, arn=arn, status="ACTIVE", created=self.time))

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        position: Position,
        *,
        inclusive: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> ModelSubscription:
        assert consumer_arn in [each.arn for each in self.registered]
        if self.refuse_next_reads:
            self.refuse_next_reads -= 1
            raise TransientError("KINESIS_UNREACHABLE", "In use.")
        self.subscriptions += 1
        return ModelSubscription(self, self.iterator(shard_id, position, inclusive=inclusive))

    def _shard(self, shard_id: str) -> ModelShard:
        found = next((shard for shard in self.all if shard.shard_id == shard_id), None)
        if found is None:
            raise ShardNotFound(shard_id)
        return found

    def _encoded(self, shard_id: str, after: int) -> str:
        return base64.b64encode(f"{shard_id}|{after}|{self._iterator_age}".encode()).decode()


class ModelSubscription:
    """Pages of a shard as they are pushed. Sequence numbers are passed over a few at a time where that is told."""

    def __init__(self, stream: ModelStream, iterator: str) -> None:
        self._stream = stream
        self._iterator = iterator
        self._left = stream.events_per_subscription
        self.closed = False

    def next(self) -> Page:
        assert not self.closed
        if not self._left:
            raise SubscriptionEnded("its time is over")
        self._left -= 1
        try:
            scanned = self._scan()
            page = self._stream.records(self._iterator, 10_000) if scanned is None else scanned
        except (TransientError, IteratorExpired) as error:
            raise SubscriptionEnded("cut off") from error
        if page.next_iterator is None:
            return page
        self._iterator = page.next_iterator
        after = base64.b64decode(self._iterator).decode().split("|")[1]
        return replace(page, next_iterator=after)

    def close(self) -> None:
        self.closed = True

    def _scan(self) -> Page | None:
        """An event without records, on the way to the next record; None where that is near."""
        name, after, age = base64.b64decode(self._iterator).decode().split("|")
        numbers = [record.number for record in self._stream._shard(name).records if record.number > int(after)]
        if not self._stream.scanned_per_event or not int(after) or not numbers:
            return None
        reached = int(after) + self._stream.scanned_per_event
        if reached >= numbers[0]:
            return None
        iterator = base64.b64encode(f"{name}|{reached}|{age}".encode()).decode()
        return Page(next_iterator=iterator, behind_ms=1)


def texts(puts: Iterable[Put]) -> list[bytes]:
    return [put.data for put in puts]
