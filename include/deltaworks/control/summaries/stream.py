"""What a stream says of its last batches and hours, in two small objects, for pages that must not read its tables.

Both are derived: the ledger and the progress table have the same and more. Nothing decides by them; where one is lost
the stream begins it anew, and where one cannot be written its batches land all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final

from deltaworks.control import summary_paths as paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart
from deltaworks.control.summaries.base import decode_or_none, read_summary

MAX_BATCHES: Final = 240
MAX_PROBLEMS: Final = 50
MAX_HOURS: Final = 60 * 24
_MAX_PROBLEM_LENGTH = 500
#: The object of hours is large and changes little: it is written this seldom.
HOURS_WRITE_INTERVAL_SECONDS: Final = 60.0

_KIND = RecordKind(
    noun="summary of a stream",
    unreadable_condition="STREAM_SUMMARY_UNREADABLE",
    hint="Remove it: the stream writes it anew with its next batch.",
)


class BatchSummary(RecordPart):
    """One batch that is complete, at `at`. Seconds by phase.

    `arrived` are ages in seconds, at `at`, of what it read, sampled evenly by rank, the youngest first; empty where the
    source does not say when things came.
    """

    batch_id: int
    at: str
    rows: int
    quarantined: int
    files: int
    bytes: int
    tables: int
    resumed: bool = False
    prepare_seconds: float
    commit_seconds: float
    complete_seconds: float
    backlog_files: int | None = None
    backlog_bytes: int | None = None
    backlog_records: int | None = None
    oldest_pending_seconds: float | None = None
    arrival_ages: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took, from its begin to its end."""
        return self.prepare_seconds + self.commit_seconds + self.complete_seconds


class ProblemSummary(RecordPart):
    """Something that went wrong at `at`: how the query ended, or what was lost."""

    at: str
    text: str


class RecentBatches(Record):
    """The last batches and problems of a stream, the oldest first."""

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    written_at: str
    batches: tuple[BatchSummary, ...] = ()
    problems: tuple[ProblemSummary, ...] = ()

    def freshness(self, now: datetime, *, within: timedelta = timedelta(hours=1)) -> tuple[float, float] | None:
        """Median and 95th percentile of the seconds from landing to bronze, over what was read lately.

        Each file counts once. None where nothing was read, or nobody knows when it came.
        """
        return age_quantiles(batch for batch in self.batches if (at := parse_iso(batch.at)) and now - at <= within)


class HourSummary(RecordPart):
    """What a stream did within one hour of the clock that began at `at`. `busy_seconds` is the time of its batches."""

    at: str
    batches: int = 0
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    longest_pending_seconds: float | None = None

    def with_batch(self, batch: BatchSummary) -> HourSummary:
        """The hour with one more batch."""
        pending = [age for age in (self.longest_pending_seconds, batch.oldest_pending_seconds) if age is not None]
        return self.replace(
            batches=self.batches + 1,
            rows=self.rows + batch.rows,
            quarantined=self.quarantined + batch.quarantined,
            files=self.files + batch.files,
            bytes=self.bytes + batch.bytes,
            busy_seconds=round(self.busy_seconds + batch.seconds, 3),
            longest_pending_seconds=max(pending, default=None),
        )


class StreamHours(Record):
    """The last hours of a stream in which batches landed, the oldest first."""

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    written_at: str
    hours: tuple[HourSummary, ...] = ()


def age_quantiles(batches: Iterable[BatchSummary]) -> tuple[float, float] | None:
    """Median and 95th percentile of arrival ages over batches, each weighed by its files."""
    # Ages are of a tenth of a second, so that many are equal: they are added up before anything is sorted.
    by_age: dict[float, float] = {}
    for batch in batches:
        if batch.arrival_ages:
            weight = max(batch.files, 1) / len(batch.arrival_ages)
            for age in batch.arrival_ages:
                by_age[age] = by_age.get(age, 0.0) + weight
    if not by_age:
        return None
    weighed = sorted(by_age.items())
    total_weight = sum(by_age.values())
    return _quantile(weighed, 0.5 * total_weight), _quantile(weighed, 0.95 * total_weight)


def _quantile(weighed: Sequence[tuple[float, float]], share: float) -> float:
    passed = 0.0
    for age, weight in weighed:
        passed += weight
        if passed >= share - 1e-9:
            return age
    return weighed[-1][0]


def sample_by_rank(ages: Sequence[float], max_samples: int = 20) -> tuple[float, ...]:
    """At most so many of the ages, evenly by rank, the youngest and the oldest among them."""
    ordered = sorted(round(age, 1) for age in ages)
    if len(ordered) <= max_samples:
        return tuple(ordered)
    return tuple(ordered[round(index * (len(ordered) - 1) / (max_samples - 1))] for index in range(max_samples))


def recent_freshness(objects: ObjectStore, pipeline: str, now: datetime) -> tuple[float, float] | None:
    """Median and 95th percentile of the seconds from landing to bronze of the last hour, which ends with the minute
    that `now` lies in: for lists of many streams, which would count thousands of ages for each look.

    Raises:
        TransientError: the storage does not answer.
    """
    key = paths.recent_batches(pipeline)
    stored = objects.get(key)
    return None if stored is None else _freshness_of(stored.data, key, now.replace(second=0, microsecond=0))


@lru_cache(maxsize=256)
def _freshness_of(data: bytes, key: str, minute: datetime) -> tuple[float, float] | None:
    recent = _decode_recent(data, key)
    return None if recent is None else recent.freshness(minute)


def read_recent(objects: ObjectStore, pipeline: str) -> RecentBatches | None:
    """The last batches of a stream; None where there is no record of them that can be read.

    Raises:
        TransientError: the storage does not answer.
    """
    key = paths.recent_batches(pipeline)
    stored = objects.get(key)
    return None if stored is None else _decode_recent(stored.data, key)


@lru_cache(maxsize=64)
def _decode_recent(data: bytes, key: str) -> RecentBatches | None:
    """Kept, since pages read the same bytes many times; a record is frozen."""
    return decode_or_none(RecentBatches, data, key=key)


def read_hours(objects: ObjectStore, pipeline: str) -> StreamHours | None:
    """The last hours of a stream; None where there is no record of them that can be read.

    Raises:
        TransientError: the storage does not answer.
    """
    return read_summary(StreamHours, objects, paths.stream_hours(pipeline))[0]


class StreamSummaryWriter:
    """Keeps both objects of one stream current. Used by one thread; a write that fails is made up for by the next."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._batches: list[BatchSummary] | None = None
        self._problems: list[ProblemSummary] = []
        self._hours: dict[str, HourSummary] = {}
        self._pending: list[BatchSummary] = []
        self._pending_problems: list[ProblemSummary] = []
        self._hours_at: datetime | None = None
        self._hours_changed = False

    def add(self, batch: BatchSummary) -> None:
        """Take a batch; nothing is written yet."""
        self._pending.append(batch)

    def add_problem(self, at: datetime, text: str) -> None:
        """Take what went wrong; nothing is written yet."""
        self._pending_problems.append(
            ProblemSummary(at=at.isoformat(timespec="seconds"), text=text[:_MAX_PROBLEM_LENGTH])
        )

    def write(self, now: datetime, *, last: bool = False) -> None:
        """Write what was added since the last time; the hours once a minute, or as the last thing a stream does.

        Raises:
            DeltaworksError: the storage does not take it; the next call writes it.
        """
        if self._batches is None:
            self._load_previous()
        self._write_recent(now)
        due = self._hours_at is None or (now - self._hours_at).total_seconds() >= HOURS_WRITE_INTERVAL_SECONDS
        if self._hours_changed and (last or due):
            record = StreamHours(pipeline=self._pipeline, written_at=now.isoformat(), hours=self._last_hours(now))
            self._objects.put(paths.stream_hours(self._pipeline), record.encode())
            self._hours_at, self._hours_changed = now, False

    def _load_previous(self) -> None:
        """Go on with what an earlier run wrote."""
        recent, hours = read_recent(self._objects, self._pipeline), read_hours(self._objects, self._pipeline)
        self._hours = {hour.at: hour for hour in hours.hours} if hours else {}
        self._problems = list(recent.problems) if recent else []
        self._batches = list(recent.batches) if recent else []

    def _write_recent(self, now: datetime) -> None:
        if not self._pending and not self._pending_problems:
            return
        batches = [*(self._batches or ()), *self._pending][-MAX_BATCHES:]
        problems = [*self._problems, *self._pending_problems][-MAX_PROBLEMS:]
        record = RecentBatches(
            pipeline=self._pipeline, written_at=now.isoformat(), batches=tuple(batches), problems=tuple(problems)
        )
        self._objects.put(paths.recent_batches(self._pipeline), record.encode())
        for batch in self._pending:
            hour = f"{batch.at[:13]}:00:00+00:00"
            self._hours[hour] = self._hours.get(hour, HourSummary(at=hour)).with_batch(batch)
            self._hours_changed = True
        self._batches, self._problems = batches, problems
        self._pending, self._pending_problems = [], []

    def _last_hours(self, now: datetime) -> tuple[HourSummary, ...]:
        since = (now - timedelta(hours=MAX_HOURS)).isoformat()
        self._hours = {at: hour for at, hour in sorted(self._hours.items()) if at >= since}
        return tuple(self._hours.values())
