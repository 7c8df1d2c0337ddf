"""What a stream has read lately and how much of it went to quarantine, and whether that is too much.

The stream's process keeps the record, one small object, and the health check reads it: neither needs the tables. Totals
are of five minutes within the last hour and of an hour within the last day, and are then forgotten, so that a bad day
is not held against a stream for ever. Beside it lies what replays have landed of it since, by when it was quarantined:
it counts as quarantined no longer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from deltaworks.control import paths, summary_paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.objects import ObjectStore

FORMAT = 1
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_FINE_SPAN = timedelta(minutes=5)
#: Reasons that a total remembers, the most frequent ones: they name declared fields, rules and budgets.
MAX_REASONS = 20
_MAX_REASONS_SHOWN = 3
_MAX_PATH_LENGTH = 80

#: Events by the code of a reason and the field that it is about. Values are never part of it.
Reasons = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTotals:
    """Events that were read, rows that landed (an event may land in several tables), and events in quarantine.

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
        """The same where these went to quarantine and have landed since. No count gets below nothing."""
        remaining = {reason: number - replayed.reasons.get(reason, 0) for reason, number in self.reasons.items()}
        return EventTotals(
            events=self.events,
            rows=self.rows,
            quarantined=max(0, self.quarantined - replayed.quarantined),
            reasons={reason: number for reason, number in remaining.items() if number > 0},
        )

    @property
    def quarantined_share(self) -> float:
        """The share of events that went to quarantine."""
        return self.quarantined / self.events if self.events else 0.0

    def describe_reasons(self) -> str:
        """The most frequent reasons as text: `9,998 type_mismatch at level, 2 malformed`."""
        listed = list(self.reasons.items())
        shown = [
            f"{number:,} {code}" + (f" at {path[:_MAX_PATH_LENGTH]}" if path else "")
            for (code, path), number in listed[:_MAX_REASONS_SHOWN]
        ]
        more = len(listed) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Totals by the time at which their span began, and those of what has `landed` again since. Immutable."""

    spans: Mapping[datetime, EventTotals] = field(default_factory=dict)
    replayed: Mapping[datetime, EventTotals] = field(default_factory=dict)

    def with_batch(self, at: datetime, total: EventTotals) -> Throughput:
        """The record with a batch that was complete at that time."""
        return self.merged(Throughput({_span_start(at, _FINE_SPAN): total}), now=at)

    def merged(self, other: Throughput, *, now: datetime) -> Throughput:
        """Both records as one, without what is older than a day."""
        spans: dict[datetime, EventTotals] = {}
        for at, total in sorted([*self.spans.items(), *other.spans.items()], key=lambda item: item[0]):
            if at + HOUR <= now - DAY:
                continue
            begin = at if at + _FINE_SPAN > now - HOUR else _span_start(at, HOUR)
            spans[begin] = spans.get(begin, EventTotals()) + total
        return Throughput(spans)

    def last_hour(self, now: datetime) -> EventTotals:
        """What was read within the last hour."""
        return self._since(now - HOUR - _FINE_SPAN)

    def _since(self, first: datetime) -> EventTotals:
        total, landed = (_sum(one for at, one in spans.items() if at > first) for spans in (self.spans, self.replayed))
        return total.minus(landed)

    def recent_totals(self, now: datetime, *, events: int) -> tuple[EventTotals, timedelta]:
        """What was read within the last hour or, where that was fewer than `events`, within as many hours of the last
        day as it takes; and within which time that is."""
        window, total = HOUR, self.last_hour(now)
        while total.events < events and window < DAY:
            window += HOUR
            total = self._since(now - window)
        return total, window

    def encode(self) -> bytes:
        """As JSON."""
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
        """What `encode` wrote; an empty record for one that is torn or of another format."""
        try:
            record = json.loads(data)
            if record["format"] != FORMAT:
                return cls()
            return cls({at: _total(span) for span in record["spans"] if (at := parse_iso(span["at"])) is not None})
        except (ValueError, KeyError, TypeError):
            return cls()


def read_throughput(objects: ObjectStore, key: str) -> Throughput:
    """The stored record; an empty one where there is none."""
    item = objects.get(key)
    return Throughput.decode(item.data) if item else Throughput()


def read_with_replays(objects: ObjectStore, control: str, limits: HealthLimits, now: datetime) -> Throughput:
    """The stored record of a control folder. What replays have landed is read only where it may change a verdict."""
    read = read_throughput(objects, paths.throughput(control))
    if not describe_quarantine_excess(read, limits, now):
        return read
    return replace(read, replayed=read_throughput(objects, summary_paths.replayed_throughput(control)).spans)


def record_replayed(objects: ObjectStore, control: str, replayed: Throughput, *, now: datetime) -> None:
    """Keep what a replay has landed, by when it was quarantined. Of replays, one writes at a time."""
    if replayed.spans:
        key = summary_paths.replayed_throughput(control)
        objects.put(key, read_throughput(objects, key).merged(replayed, now=now).encode())


class ThroughputWriter:
    """Keeps the stored record of a pipeline current. Used by one thread; a write that fails is made up for by the next.

    What an earlier process stored goes on to count.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self._stored: Throughput | None = None
        self._pending = Throughput()

    def add(self, at: datetime, total: EventTotals) -> None:
        """Take a batch; nothing is written yet."""
        self._pending = self._pending.with_batch(at, total)

    def write(self, now: datetime) -> None:
        """Write what was added since the last time. Nothing to add, nothing is written."""
        if not self._pending.spans:
            return
        before = self._stored if self._stored is not None else read_throughput(self._objects, self._key)
        merged = before.merged(self._pending, now=now)
        self._objects.put(self._key, merged.encode())
        self._stored, self._pending = merged, Throughput()


def describe_quarantine_excess(throughput: Throughput, limits: HealthLimits, now: datetime) -> str:
    """What is to be said of too many events in quarantine; empty where they are few, or too few to judge by."""
    total, window = throughput.recent_totals(now, events=limits.quarantined_events_min)
    if total.events < limits.quarantined_events_min or total.quarantined_share <= limits.quarantined_share_max:
        return ""
    hours = window // HOUR
    within = "the last hour" if hours == 1 else f"the last {hours} hours"
    bound = f"{100 * limits.quarantined_share_max:g} % are declared"
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
    """The begin of the span of the clock that `at` lies in."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // span * span
