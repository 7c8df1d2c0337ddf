"""Recent throughput of a stream, and the share of events it quarantined.

The stream writes the record as one small object, and the health check reads it without opening tables. Totals cover a
minute each for the last hour, then an hour each for the last day, and are then dropped, so that old errors stop
affecting health. The share of the hour finds errors that persist; the worst run of minutes in it finds batches that
were rejected as a whole, which a busy hour hides. A second object counts quarantined events that were replayed since;
these no longer count as quarantined.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.objects import ObjectStore
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.quarantine import QuarantineSummary

FORMAT = 1
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_FINE_SPAN = timedelta(minutes=1)
#: Replayed events are subtracted from a run of minutes if they were quarantined so near to it.
_REPLAY_SLACK = timedelta(minutes=5)
#: The hour's text is enough if the worst run has this share of its events.
_SAME_EVENTS_SHARE = 0.9
#: Maximum number of reasons per total; the most frequent ones are kept. Reasons name declared fields, rules and limits.
MAX_REASONS = 20
_MAX_REASONS_SHOWN = 3
_MAX_PATH_LENGTH = 80

#: Events by reason code and field path. Never contains values.
Reasons = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTotals:
    """Events read, rows written (an event may produce rows in several tables) and events quarantined.

    An event counts once for each of its `reasons`.
    """

    events: int = 0
    rows: int = 0
    quarantined: int = 0
    reasons: Reasons = field(default_factory=dict)

    def __add__(self, other: EventTotals) -> EventTotals:
        reasons = Counter(self.reasons)
        reasons.update(other.reasons)
        return EventTotals(
            events=self.events + other.events,
            rows=self.rows + other.rows,
            quarantined=self.quarantined + other.quarantined,
            reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]),
        )

    def minus(self, replayed: EventTotals) -> EventTotals:
        """Subtracts quarantined events that were replayed since. Counts do not go below 0."""
        remaining = {reason: number - replayed.reasons.get(reason, 0) for reason, number in self.reasons.items()}
        return EventTotals(
            events=self.events,
            rows=self.rows,
            quarantined=max(0, self.quarantined - replayed.quarantined),
            reasons={reason: number for reason, number in remaining.items() if number > 0},
        )

    def limited(self, quarantined: int) -> EventTotals:
        """Limits the quarantined events to this number."""
        reasons = {reason: min(number, quarantined) for reason, number in self.reasons.items() if quarantined}
        return replace(self, quarantined=min(self.quarantined, quarantined), reasons=reasons)

    @property
    def quarantined_share(self) -> float:
        """The share of events that were quarantined."""
        return self.quarantined / self.events if self.events else 0.0

    def describe_reasons(self) -> str:
        """Formats the most frequent reasons: `9,998 type_mismatch at level, 2 malformed`."""
        reasons = list(self.reasons.items())
        texts = [
            f"{number:,} {code}" + (f" at {path[:_MAX_PATH_LENGTH]}" if path else "")
            for (code, path), number in reasons[:_MAX_REASONS_SHOWN]
        ]
        omitted = len(reasons) - len(texts)
        return ", ".join(texts) + (f" and {omitted} more" if omitted else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRun:
    """Successive minutes of the last hour in which a large share of the events was quarantined.

    Args:
        end: the end of its last minute; None if no batch completed since.
        before: the other events of the hour.
    """

    start: datetime
    end: datetime | None
    total: EventTotals
    before: EventTotals

    def describe(self, limit: float) -> str:
        """Describes the run, with the reasons that grew most, and the limit of its share."""
        span = f"Since {self.start:%H:%M}" if self.end is None else f"From {self.start:%H:%M} to {self.end:%H:%M}"
        scale = self.total.events / self.before.events if self.before.events else 0.0

        def growth(item: tuple[tuple[str, str], int]) -> tuple[float, tuple[str, str]]:
            return scale * self.before.reasons.get(item[0], 0) - item[1], item[0]

        grown = replace(self.total, reasons=dict(sorted(self.total.reasons.items(), key=growth)))
        return (
            f"{span} UTC {100 * self.total.quarantined_share:.0f} % of {self.total.events:,} events are in quarantine "
            f"(limit {100 * limit:g} %): {grown.describe_reasons()}."
        )


@dataclass(frozen=True, slots=True)
class Throughput:
    """Totals by start of their interval, and the `replayed` events to subtract from them. Immutable.

    At most `open_rows` events are still in quarantine, if that is known: a reprocess, an expiry and a start-over
    remove them, too.
    """

    spans: Mapping[datetime, EventTotals] = field(default_factory=dict)
    replayed: Mapping[datetime, EventTotals] = field(default_factory=dict)
    open_rows: int | None = None

    def with_batch(self, at: datetime, total: EventTotals) -> Throughput:
        """Adds a batch that completed at the given time."""
        return self.merged(Throughput({_span_start(at, _FINE_SPAN): total}), now=at)

    def merged(self, other: Throughput, *, now: datetime) -> Throughput:
        """Merges two records, and drops totals older than a day."""
        spans: dict[datetime, EventTotals] = {}
        for at, total in sorted([*self.spans.items(), *other.spans.items()], key=lambda item: item[0]):
            if at + HOUR <= now - DAY:
                continue
            begin = at if at + _FINE_SPAN > now - HOUR else _span_start(at, HOUR)
            spans[begin] = spans.get(begin, EventTotals()) + total
        return Throughput(spans)

    def last_hour(self, now: datetime) -> EventTotals:
        """Totals of the last hour."""
        return self._since(now - HOUR - _FINE_SPAN)

    def _since(self, first: datetime) -> EventTotals:
        total, replayed = (
            _sum(one for at, one in spans.items() if at > first) for spans in (self.spans, self.replayed)
        )
        remaining = total.minus(replayed)
        return remaining if self.open_rows is None else remaining.limited(self.open_rows)

    def last_minutes(self, now: datetime, minutes: int) -> EventTotals:
        """Totals of the last minutes, at most an hour."""
        return self._since(now - timedelta(minutes=minutes) - _FINE_SPAN)

    def worst_run(self, now: datetime, *, share: float) -> RejectedRun | None:
        """Returns the run of minutes of the last hour whose quarantined events exceed this share by most events; None
        if none exceeds it.
        """
        spans = [(at, total) for at, total in sorted(self.spans.items()) if at > now - HOUR - _FINE_SPAN]
        remaining = self._without_replayed(spans)
        best, best_excess, first, excess = None, 0.0, 0, 0.0
        for last, (_, total) in enumerate(remaining):
            if excess <= 0:
                first, excess = last, 0.0
            excess += total.quarantined - share * total.events
            if excess > best_excess:
                best, best_excess = (first, last), excess
        if best is None:
            return None
        start, end = spans[best[0]][0], spans[best[1]][0] + _FINE_SPAN
        run = _sum(total for _, total in remaining[best[0] : best[1] + 1])
        before = _sum(total for number, (_, total) in enumerate(remaining) if not best[0] <= number <= best[1])
        is_last = not any(total.events for _, total in spans[best[1] + 1 :])
        limited = run if self.open_rows is None else run.limited(self.open_rows)
        return RejectedRun(start=start, end=None if is_last else end, total=limited, before=before)

    def _without_replayed(self, spans: Sequence[tuple[datetime, EventTotals]]) -> list[tuple[datetime, EventTotals]]:
        """Subtracts the replayed events, which are recorded by the time of their quarantine, from the spans near to it,
        nearest first.
        """
        remaining = dict(spans)
        for at, replayed in self.replayed.items():
            rest = replayed
            for near in sorted(remaining, key=lambda span: abs(span - at)):
                if not rest.quarantined or abs(near - at) > _REPLAY_SLACK:
                    break
                before = remaining[near]
                remaining[near], rest = before.minus(rest), rest.minus(before)
        return sorted(remaining.items(), key=lambda item: item[0])

    def recent_totals(self, now: datetime, *, events: int) -> tuple[EventTotals, timedelta]:
        """Returns the totals of the last hour or, if they have fewer than `events` events, of as many hours as needed
        (up to a day), with the length of that window.
        """
        window, total = HOUR, self.last_hour(now)
        while total.events < events and window < DAY:
            window += HOUR
            total = self._since(now - window)
        return total, window

    def encode(self) -> bytes:
        """Encodes as JSON."""
        spans = [
            {
                "at": at.isoformat(),
                "events": total.events,
                "rows": total.rows,
                "quarantined": total.quarantined,
                "reasons": [[code, path, number] for (code, path), number in total.reasons.items()],
            }
            for at, total in sorted(self.spans.items())
        ]
        return json.dumps({"format": FORMAT, "spans": spans}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Throughput:
        """Parses the output of `encode`; returns an empty record if it is damaged or of another format."""
        try:
            record = json.loads(data)
            if record["format"] != FORMAT:
                return cls()
            return cls({at: _total(span) for span in record["spans"] if (at := parse_iso(span["at"])) is not None})
        except (ValueError, KeyError, TypeError):
            return cls()


def read_throughput(objects: ObjectStore, key: str) -> Throughput:
    """Reads the stored record; empty if there is none."""
    item = objects.get(key)
    return Throughput.decode(item.data) if item else Throughput()


def read_with_replays(objects: ObjectStore, pipeline: str, limits: HealthLimits, now: datetime) -> Throughput:
    """Reads the record of a stream. Reads which events have left quarantine only if that may change a verdict."""
    control = paths.pipeline_control(pipeline)
    throughput = read_throughput(objects, paths.throughput(control))
    if not describe_quarantine_excess(throughput, limits, now):
        return throughput
    replayed = read_throughput(objects, paths.replayed_throughput(control)).spans
    summary, _ = read_summary(QuarantineSummary, objects, paths.quarantine_summary(pipeline))
    counted_at = None if summary is None else parse_iso(summary.at)
    newest = max((at for at, total in throughput.spans.items() if total.quarantined), default=None)
    # A summary from before the newest quarantined events lacks them.
    is_complete = counted_at is not None and newest is not None and counted_at >= newest
    return replace(throughput, replayed=replayed, open_rows=summary.rows if summary and is_complete else None)


def record_replayed(objects: ObjectStore, control: str, replayed: Throughput, *, now: datetime) -> None:
    """Records replayed events by the time of their quarantine. Only one replay may write at a time."""
    if replayed.spans:
        key = paths.replayed_throughput(control)
        objects.put(key, read_throughput(objects, key).merged(replayed, now=now).encode())


def drop_throughput(objects: ObjectStore, control: str, *, since: datetime | None) -> None:
    """Drops the totals of given-up batches: those after an instant, or all. Only while no stream runs.

    Totals of intervals that contain the instant are dropped too.
    """
    for key in (paths.throughput(control), paths.replayed_throughput(control)):
        record = read_throughput(objects, key)
        if record.spans:
            remaining = {} if since is None else {at: one for at, one in record.spans.items() if at + HOUR <= since}
            objects.put(key, Throughput(remaining).encode())


class ThroughputWriter:
    """Updates the stored record of a pipeline. Single-threaded.

    Continues the record of earlier processes. If a write fails, the next one includes its batches.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self._stored: Throughput | None = None
        self._pending = Throughput()

    def add(self, at: datetime, total: EventTotals) -> None:
        """Adds a batch without writing."""
        self._pending = self._pending.with_batch(at, total)

    def write(self, now: datetime) -> None:
        """Writes the batches added since the last write, if any."""
        if not self._pending.spans:
            return
        stored = self._stored if self._stored is not None else read_throughput(self._objects, self._key)
        merged = stored.merged(self._pending, now=now)
        self._objects.put(self._key, merged.encode())
        self._stored, self._pending = merged, Throughput()


def describe_quarantine_excess(throughput: Throughput, limits: HealthLimits, now: datetime) -> str:
    """Describes an excess of quarantined events, in the last hour or in a run of minutes in it; empty if there are few,
    or too few events to decide.
    """
    if limits.quarantined_share_max >= 1:
        return ""
    share = max(limits.quarantined_run_share, limits.quarantined_share_max)
    hour, run = _hour_excess(throughput, limits, now), throughput.worst_run(now, share=share)
    if run is None or run.total.events < limits.quarantined_events_min or run.total.quarantined_share <= share:
        return hour
    if hour and run.total.events >= _SAME_EVENTS_SHARE * throughput.last_hour(now).events:
        return hour
    return f"{run.describe(share)} {hour}".strip()


def _hour_excess(throughput: Throughput, limits: HealthLimits, now: datetime) -> str:
    total, window = throughput.recent_totals(now, events=limits.quarantined_events_min)
    if total.events < limits.quarantined_events_min or total.quarantined_share <= limits.quarantined_share_max:
        return ""
    hours = window // HOUR
    within = "the last hour" if hours == 1 else f"the last {hours} hours"
    bound = f"limit {100 * limits.quarantined_share_max:g} %"
    return (
        f"{total.quarantined:,} of {total.events:,} events of {within} are in quarantine "
        f"({100 * total.quarantined_share:.1f} %, {bound}): {total.describe_reasons()}."
    )


def _total(span: Mapping[str, Any]) -> EventTotals:
    reasons = {(str(code), str(path)): int(number) for code, path, number in span["reasons"]}
    counts = {name: int(span[name]) for name in ("events", "rows", "quarantined")}
    return EventTotals(**counts, reasons=reasons)


def _sum(totals: Iterable[EventTotals]) -> EventTotals:
    return sum(totals, start=EventTotals())


def _span_start(at: datetime, span: timedelta) -> datetime:
    """Returns the start of the clock interval that contains `at`."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // span * span
