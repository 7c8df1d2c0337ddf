"""Records of collectors: a heartbeat per process, counts per hour, and lost events.

A process owns one spool folder. Its id and a gapless sequence number are in every event it accepts
(`_collector.collector`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import collector_control
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
    noun="record of a collector",
    unreadable_condition="COLLECTOR_RECORD_UNREADABLE",
    hint="Run the release that the collector runs, or a later one.",
)


class SourceStatus(RecordPart):
    """Delivery totals of one source.

    If its sink accepts nothing, `problem` is the reason and `problem_since` the start.
    """

    delivered: int = 0
    objects: int = 0
    dead_letters: int = 0
    problem: str = ""
    problem_since: str | None = None


class CollectorHeartbeat(Record):
    """The heartbeat of one process. Times are ISO 8601 in UTC.

    Args:
        next_seq: number of the next event.
        oldest_at: arrival of the oldest undelivered event.
        damaged: spool files that were moved aside because they are damaged.
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
    """The events that a process accepted within an hour, by source and response.

    Their sequence numbers are `first_seq` to `next_seq` - 1. With `is_complete` the hour has ended, and the counts no
    longer change.
    """

    kind: ClassVar[RecordKind] = _KIND

    id: str
    hour: str
    first_seq: int
    next_seq: int
    sources: dict[str, dict[str, int]] = Field(default_factory=dict)
    is_complete: bool = False


class MissingRange(RecordPart):
    """A range of event numbers of one process that are in no table, both ends included."""

    id: str
    first: int
    last: int

    @property
    def events(self) -> int:
        """The number of events in the range."""
        return self.last - self.first + 1


class LostEvents(Record):
    """Result of the last check for lost events.

    All events of a process up to `checked_up_to` were checked. Of these, only `missing` ones are checked again, because
    rows that were deleted later, such as those of an erased person, are not lost.
    """

    kind: ClassVar[RecordKind] = _KIND

    checked_at: str
    checked_up_to: dict[str, int] = Field(default_factory=dict)
    missing: tuple[MissingRange, ...] = ()


def read_collector_heartbeats(objects: ObjectStore, collector: str) -> list[CollectorHeartbeat]:
    """Reads the heartbeats of all processes of a collector.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE.
        TransientError: the storage does not answer.
    """
    store = RecordStore(objects, CollectorHeartbeat)
    keys = objects.list(collector_control(collector) + "/")
    heartbeats = (store.read(key) for key in keys if key.endswith("/heartbeat.json"))
    return [beat for beat in heartbeats if beat is not None]


def read_hour_counts(objects: ObjectStore, collector: str) -> list[HourCounts]:
    """Reads the hourly counts of all processes, in the order of their keys.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE.
        TransientError: the storage does not answer.
    """
    store = RecordStore(objects, HourCounts)
    keys = objects.list(collector_control(collector) + "/")
    counts = (store.read(key) for key in keys if "/counts/" in key)
    return [record for record in counts if record is not None]
