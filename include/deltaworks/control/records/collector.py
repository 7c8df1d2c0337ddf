"""What a collector puts on record: a heartbeat a process, the counts of each hour, and what was found missing.

A process is one spool folder. Its id is in every event it has taken (`_collector.collector`), beside a number that has
no gaps.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from deltaworks.control.collector_paths import collector_control
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
    noun="record of a collector",
    unreadable_condition="COLLECTOR_RECORD_UNREADABLE",
    hint="Run the release that the collector runs, or a later one.",
)


class SourceStatus(RecordPart):
    """One source: what its sink has taken in all. `trouble` says why it takes nothing now, since `trouble_since`."""

    delivered: int = 0
    objects: int = 0
    dead_letters: int = 0
    problem: str = ""
    problem_since: str | None = None


class CollectorHeartbeat(Record):
    """A heartbeat of one process. Times are ISO 8601 in UTC; `oldest_at` is when the oldest that waits came in.

    `next_seq` is the number of the next event; `damaged` are files of the spool that were put aside.
    """

    kind: ClassVar[RecordKind] = _KIND

    collector: str
    id: str
    state: Literal["running", "draining", "ended"]
    written_at: str
    started_at: str
    next_seq: int
    spool_bytes: int
    spool_max_bytes: int
    oldest_at: str | None = None
    damaged: tuple[str, ...] = ()
    sources: dict[str, SourceStatus] = Field(default_factory=dict)
    host: str = ""
    pid: int = 0


class HourCounts(Record):
    """What one process has taken within an hour: the numbers it gave, from `first_seq` to before `next_seq`, and how
    many events of each source and verdict they were.

    `whole`: the process has seen the end of the hour; nothing is added any more.
    """

    kind: ClassVar[RecordKind] = _KIND

    id: str
    hour: str
    first_seq: int
    next_seq: int
    sources: dict[str, dict[str, int]] = Field(default_factory=dict)
    is_complete: bool = False


class MissingRange(RecordPart):
    """Numbers of events of one process that are nowhere: from `first` to `last`."""

    id: str
    first: int
    last: int

    @property
    def events(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


class LostEvents(Record):
    """What the last look for lost events has found.

    `counted_up_to`: of each process, the number up to which everything was looked for. Of what is before it only
    `missing` is looked for again: rows that go later, as those of an erased person, are no loss.
    """

    kind: ClassVar[RecordKind] = _KIND

    checked_at: str
    checked_up_to: dict[str, int] = Field(default_factory=dict)
    missing: tuple[MissingRange, ...] = ()


def heartbeat_key(collector: str, process: str) -> str:
    """Where a process writes its heartbeat."""
    return collector_control(collector, f"{process}/heartbeat.json")


def counts_key(collector: str, process: str, hour: str) -> str:
    """Where a process writes what it took in an hour, such as `2026-11-23T14`."""
    return collector_control(collector, f"{process}/counts/{hour}.json")


def lost_events_key(collector: str) -> str:
    """Where the last look for lost events has its findings."""
    return collector_control(collector, "losses.json")


def read_collector_heartbeats(objects: ObjectStore, collector: str) -> list[CollectorHeartbeat]:
    """The heartbeats of all processes a collector has had.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE.
        TransientError: the storage does not answer.
    """
    store = RecordStore(objects, CollectorHeartbeat)
    keys = objects.list(collector_control(collector) + "/")
    heartbeats = (store.read(key) for key in keys if key.endswith("/heartbeat.json"))
    return [beat for beat in heartbeats if beat is not None]


def read_hour_counts(objects: ObjectStore, collector: str) -> list[HourCounts]:
    """What all processes took, hour by hour, in the order of their keys.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE.
        TransientError: the storage does not answer.
    """
    store = RecordStore(objects, HourCounts)
    keys = objects.list(collector_control(collector) + "/")
    counts = (store.read(key) for key in keys if "/counts/" in key)
    return [record for record in counts if record is not None]
