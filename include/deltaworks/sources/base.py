"""What a batch reads, and how its payloads come into the tasks of the one pass.

Objects are named in the driver and opened in tasks. Records of a stream are read in tasks and never seen by the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from deltaworks.control.clock import micros_as_iso
from deltaworks.events.parse import Payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a task tells the driver: the name of a table and one of its files, or another kind of record.
Told = tuple[str, dict[str, Any]]
#: The work of a task: payloads to files.
Task = Callable[[Iterable[Payload]], Iterable[Told]]
PayloadOpener = Callable[[Any], Payload]
#: Turns the rows of a task, as they come, into payloads.
PayloadReader = Callable[[Iterable[pa.RecordBatch]], Iterable["Record"]]

#: Stands where a task's record has the name of a table: how much the task has read.
READ = "\0read"
#: The same: which places of its stream a task has read.
SEEN = "\0seen"
#: How many ranges of lost records the ledger names.
MOST_LOST_NAMED = 5
_TOLD_SCHEMA = "kind string, record string"


class SourceSlice(Protocol):
    """What one batch reads."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about it for the prepared batch and the ledger. Complete once a pass has read it."""

    def is_empty(self) -> bool:
        """Whether it is known to hold nothing, without reading it."""

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[Told]:
        """Run `task` over all payloads, in at most `tasks` tasks, and bring home what they tell.

        Reading a slice again gives the same payloads.
        """


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """Objects: references to them, their sizes in bytes, and what opens one inside a task."""

    references: Sequence[Any]
    sizes: Sequence[int]
    metadata: dict[str, Any]
    opener: PayloadOpener

    def is_empty(self) -> bool:
        return not self.references

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[Told]:
        opener = self.opener
        slices = balanced(self.references, self.sizes, tasks)

        def work(share: Iterable[list[Any]]) -> Iterator[Told]:
            for references in share:
                yield from task(map(opener, references))

        found: list[Told] = spark.sparkContext.parallelize(slices, len(slices)).mapPartitions(work).collect()
        return found


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a task reads it. `arrived_at_us` is when its stream took it, in epoch microseconds."""

    payload: Payload
    arrived_at_us: int


@dataclass(slots=True)
class ReadFacts:
    """How much of a stream was read: records, bytes, and when the oldest and the newest of them arrived."""

    records: int = 0
    bytes: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None

    def note(self, records: Iterable[Record]) -> Iterator[Payload]:
        """The payloads, counted on their way."""
        for record in records:
            self.records += 1
            self.bytes += len(record.payload.data or b"")
            at = record.arrived_at_us
            self.oldest_us = at if self.oldest_us is None else min(self.oldest_us, at)
            self.newest_us = at if self.newest_us is None else max(self.newest_us, at)
            yield record.payload

    def add(self, other: ReadFacts) -> None:
        """Take in what another task has read."""
        self.records += other.records
        self.bytes += other.bytes
        oldest = [at for at in (self.oldest_us, other.oldest_us) if at is not None]
        newest = [at for at in (self.newest_us, other.newest_us) if at is not None]
        self.oldest_us, self.newest_us = min(oldest, default=None), max(newest, default=None)

    def as_metadata(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        facts: dict[str, Any] = {"records": self.records, "bytes": self.bytes}
        if self.oldest_us is not None and self.newest_us is not None:
            facts |= {
                "oldest_event_time": micros_as_iso(self.oldest_us),
                "newest_event_time": micros_as_iso(self.newest_us),
            }
        return facts


class PlacesSeen(Protocol):
    """What a task notes of the rows it reads. Made anew in every task."""

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, noted on their way."""

    def told(self) -> list[Any]:
        """What was noted, as JSON can carry it."""


class NothingSeen:
    """Of a source that knows by itself what was lost, or that loses nothing."""

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches."""
        return iter(batches)

    def told(self) -> list[Any]:
        """Nothing."""
        return []


@dataclass(frozen=True, slots=True)
class LossCheck:
    """Finds records that a source had let go of before they were read, where that is allowed.

    `seen` is made in tasks. `lost` is asked in the driver once all have been read: a payload for each range that is
    gone, which becomes its row in quarantine; its key names the range.
    """

    seen: Callable[[], PlacesSeen]
    lost: Callable[[Sequence[Any]], Sequence[Payload]]


@dataclass(slots=True)
class RecordSlice:
    """Records of a stream, as the rows of a batch's DataFrame; `reader` makes payloads of them inside a task."""

    frame: DataFrame
    reader: PayloadReader
    losses: LossCheck | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def is_empty(self) -> bool:
        return False

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[Told]:
        reader = self.reader
        seen_by = self.losses.seen if self.losses else NothingSeen

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            facts, seen = ReadFacts(), seen_by()
            told = list(task(facts.note(reader(seen.through(batches)))))
            told.append((READ, {name: getattr(facts, name) for name in ReadFacts.__slots__}))
            told.append((SEEN, {"places": seen.told()}))
            yield pa.RecordBatch.from_pydict(
                {"kind": [kind for kind, _ in told], "record": [json.dumps(record) for _, record in told]},
                schema=pa.schema([("kind", pa.string()), ("record", pa.string())]),
            )

        # A task for every partition of a topic would write a file into every table each.
        rows = self.frame.coalesce(tasks).mapInArrow(work, _TOLD_SCHEMA).collect()
        found = [(row["kind"], json.loads(row["record"])) for row in rows]
        facts = ReadFacts()
        for kind, record in found:
            if kind == READ:
                facts.add(ReadFacts(**record))
        self.metadata = facts.as_metadata()
        places = [place for kind, record in found if kind == SEEN for place in record["places"]]
        return [each for each in found if each[0] not in {READ, SEEN}] + self._lost(task, places)

    def _lost(self, task: Task, places: Sequence[Any]) -> list[Told]:
        """What is gone becomes rows of this batch, written here: there are a few of them at most."""
        lost = self.losses.lost(places) if self.losses else ()
        if not lost:
            return []
        self.metadata |= {"ranges_lost": len(lost), "lost_examples": [each.key for each in lost[:MOST_LOST_NAMED]]}
        return list(task(lost))


def balanced(references: Sequence[Any], sizes: Sequence[int], tasks: int) -> list[list[Any]]:
    """Split references into at most `tasks` runs of about equal size, keeping their order."""
    total = sum(sizes) or 1
    shares: list[list[Any]] = [[] for _ in range(max(1, min(tasks, len(references))))]
    before = 0
    for reference, size in zip(references, sizes, strict=True):
        middle = before + size / 2
        shares[min(int(middle * len(shares) / total), len(shares) - 1)].append(reference)
        before += size
    return [share for share in shares if share]
