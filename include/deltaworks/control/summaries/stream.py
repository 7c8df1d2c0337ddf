"""Summaries of a stream's last batches and hours, in two small objects, for pages that must not read tables.

Both are derived: ledger and progress table have the same data. A lost summary is started again, and a failed write does
not stop batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from deltaworks.control import paths
from deltaworks.control.clock import instant_or_none, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart
from deltaworks.control.summaries.base import decode_or_none, read_summary
from deltaworks.specs.gold import cross_pipeline_table

if TYPE_CHECKING:
    from deltaworks.specs.gold import GoldTableSpec
    from deltaworks.specs.pipeline import PipelineSpec

MAX_BATCHES: Final = 240
MAX_PROBLEMS: Final = 50
MAX_HOURS: Final = 60 * 24
_MAX_PROBLEM_LENGTH = 500
#: The object of hours is large and changes slowly, so it is written less often.
HOURS_WRITE_INTERVAL_SECONDS: Final = 60.0

_KIND = RecordKind(
    noun="summary of a stream",
    unreadable_condition="STREAM_SUMMARY_UNREADABLE",
    hint="Delete it: the stream rewrites it with its next batch.",
)


class BatchSummary(RecordPart):
    """One completed batch, at `at`. Seconds are by phase.

    The ages of its input at `at` are sampled evenly by rank as `arrival_ages` (seconds, youngest first); empty if the
    source has no arrival times.
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
        """The total duration."""
        return self.prepare_seconds + self.commit_seconds + self.complete_seconds


class ProblemSummary(RecordPart):
    """A problem at `at`: how the query ended, or lost data."""

    at: str
    text: str


class RecentBatches(Record):
    """The last batches and problems of a stream, oldest first."""

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    written_at: str
    batches: tuple[BatchSummary, ...] = ()
    problems: tuple[ProblemSummary, ...] = ()

    def freshness(self, now: datetime, *, within: timedelta = timedelta(hours=1)) -> tuple[float, float] | None:
        """Returns median and 95th percentile of the seconds from landing to bronze, over recent input.

        Each file counts once. None if nothing was read or no arrival times are known.
        """
        return age_quantiles(batch for batch in self.batches if (at := parse_iso(batch.at)) and now - at <= within)


class HourSummary(RecordPart):
    """Totals of the clock hour that began at `at`; `busy_seconds` is the total duration of its batches."""

    at: str
    batches: int = 0
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    longest_pending_seconds: float | None = None

    def with_batch(self, batch: BatchSummary) -> HourSummary:
        """Adds a batch."""
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
    """The last hours in which batches were written, oldest first."""

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    written_at: str
    hours: tuple[HourSummary, ...] = ()


def age_quantiles(batches: Iterable[BatchSummary]) -> tuple[float, float] | None:
    """Returns median and 95th percentile of arrival ages over batches, weighted by files."""
    # Ages are rounded to 0.1 s, so many are equal: add weights before sorting.
    by_age: dict[float, float] = {}
    for batch in batches:
        if batch.arrival_ages:
            weight = max(batch.files, 1) / len(batch.arrival_ages)
            for age in batch.arrival_ages:
                by_age[age] = by_age.get(age, 0.0) + weight
    if not by_age:
        return None
    weights_by_age = sorted(by_age.items())
    total_weight = sum(by_age.values())
    return _quantile(weights_by_age, 0.5 * total_weight), _quantile(weights_by_age, 0.95 * total_weight)


def _quantile(weights_by_age: Sequence[tuple[float, float]], share: float) -> float:
    cumulative_weight = 0.0
    for age, weight in weights_by_age:
        cumulative_weight += weight
        if cumulative_weight >= share - 1e-9:
            return age
    return weights_by_age[-1][0]


def sample_by_rank(ages: Sequence[float], max_samples: int = 20) -> tuple[float, ...]:
    """Samples at most `max_samples` ages evenly by rank, including the youngest and the oldest."""
    ordered = sorted(round(age, 1) for age in ages)
    if len(ordered) <= max_samples:
        return tuple(ordered)
    return tuple(ordered[round(index * (len(ordered) - 1) / (max_samples - 1))] for index in range(max_samples))


def recent_freshness(objects: ObjectStore, pipeline: str, now: datetime) -> tuple[float, float] | None:
    """Returns median and 95th percentile of the seconds from landing to bronze in the hour up to the current minute.

    Cached per minute, for lists of many streams.

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
    """Reads the last batches of a stream; None if missing or unreadable.

    Raises:
        TransientError: the storage does not answer.
    """
    key = paths.recent_batches(pipeline)
    stored = objects.get(key)
    return None if stored is None else _decode_recent(stored.data, key)


@lru_cache(maxsize=64)
def _decode_recent(data: bytes, key: str) -> RecentBatches | None:
    """Parses the record; cached, since pages read the same bytes many times."""
    return decode_or_none(RecentBatches, data, key=key)


def _landed_after(objects: ObjectStore, recent: RecentBatches | None, after: datetime) -> datetime | None:
    """Returns when the first rows landed in a pipeline's tables after a time; None if none did.

    Beyond the last batches the time is that of an hour, and none of the hour of `after`, whose rows may be older.

    Raises:
        TransientError: the storage does not answer.
    """
    landed = [(parse_iso(batch.at), batch.rows) for batch in (recent.batches if recent else ())]
    first = next((at for at, rows in landed if rows and at is not None and at > after), None)
    if first is None or len(landed) < MAX_BATCHES or (landed[0][0] or after) <= after:
        return first
    hours = read_hours(objects, recent.pipeline) if recent else None
    starts = [parse_iso(hour.at) for hour in (hours.hours if hours else ()) if hour.rows]
    return min([first, *(at for at in starts if at is not None and at > after)])


def gold_waiting_since(
    objects: ObjectStore,
    spec: PipelineSpec,
    table: GoldTableSpec,
    record: Mapping[str, Any],
    *,
    recent: Callable[[str], RecentBatches | None],
) -> datetime | None:
    """Returns when the first rows landed in the pipelines of a gold table's inputs that its last build has not read.

    None if no such rows landed. Rows of a table that was never built wait from when the health check first saw its
    declaration.

    Args:
        record: the table's record of its last build.
        recent: returns the last batches of a pipeline; see `read_recent`.

    Raises:
        TransientError: the storage does not answer.
    """
    built_at, seen_at = instant_or_none(record.get("at")), instant_or_none(record.get("seen_at"))
    if built_at is None and seen_at is None:
        return None
    reads = [cross_pipeline_table(name) for name in table.reads]
    after = built_at or datetime.min.replace(tzinfo=UTC)
    pipelines = sorted({spec.pipeline if other is None else other[0] for other in reads})
    landed = [_landed_after(objects, recent(pipeline), after) for pipeline in pipelines]
    first = min((at for at in landed if at is not None), default=None)
    return first if first is None or built_at is not None or seen_at is None else max(first, seen_at)


def read_hours(objects: ObjectStore, pipeline: str) -> StreamHours | None:
    """Reads the last hours of a stream; None if missing or unreadable.

    Raises:
        TransientError: the storage does not answer.
    """
    return read_summary(StreamHours, objects, paths.stream_hours(pipeline))[0]


class StreamSummaryWriter:
    """Updates both objects of one stream. Single-threaded; if a write fails, the next one includes its data."""

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
        """Adds a batch without writing."""
        self._pending.append(batch)

    def add_problem(self, at: datetime, text: str) -> None:
        """Adds a problem without writing."""
        self._pending_problems.append(
            ProblemSummary(at=at.isoformat(timespec="seconds"), text=text[:_MAX_PROBLEM_LENGTH])
        )

    def write(self, now: datetime, *, last: bool = False) -> None:
        """Writes the batches added since the last write. Hours are written once a minute, or if `last` is set.

        Raises:
            DeltaworksError: the storage rejects the write; the next call repeats it.
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
        """Loads the summaries of an earlier run."""
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
