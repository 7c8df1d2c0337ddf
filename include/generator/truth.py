"""Counts the expected table contents from the generator's records while they are packed.

Reads no emitted bytes and shares no code with the pipeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from generator.records import Record
from generator.settings import GamesSettings

#: Window and watermark of the live table; equal to the pipeline's declaration.
WINDOW_HOURS = 1
WATERMARK_SECONDS = 180 * 60
RETENTION_DAYS = (1, 7)

#: Expected quarantine reason per kind of fault.
QUARANTINE_REASONS: dict[str, str] = {
    "truncated": "malformed",
    "garbage": "malformed",
    "invalid_utf8": "malformed",
    "not_an_object": "not_an_object",
    "body_missing": "missing_required",
    "body_empty": "malformed",
    "body_not_json": "malformed",
    "body_not_an_object": "not_an_object",
    "without_time": "missing_required",
    "unknown_name": "unknown_event",
    "type_mismatch": "type_mismatch",
    "missing_required": "missing_required",
}
#: Reasons that differ for events posted to a collector. It wraps records in its envelope: a non-object is unreadable,
#: and an envelope without a body becomes an event with an undeclared name.
COLLECTOR_REASONS: dict[str, str] = {
    "not_an_object": "malformed",
    "body_not_an_object": "malformed",
    "body_missing": "unknown_event",
}

HourAndName = tuple[datetime, str]


class Bookings(NamedTuple):
    """Number and amount of purchases in an hour."""

    amount: Decimal
    purchases: int


class Cohort(NamedTuple):
    """Devices installed on a date, and how many of them were active one and seven days later.

    A count is None until its day is over, that is, until the first event of a later day.
    """

    installs: int
    retained_day_1: int | None
    retained_day_7: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesTruth:
    """The expected results.

    Attributes:
        pieces: all emitted records, including malformed ones and duplicates: bronze `events` rows plus quarantine.
        bronze_rows: rows per table as delivered, including duplicates.
        quarantine_rows: rows per kind of fault; `quarantine_reasons` gives them per reason.
        distinct_events: accepted events without duplicates.
        events_per_hour, bookings_per_hour, daily_active_users, retention: without duplicates. Of two copies, the one
            delivered first counts, with its time. Hours and dates without rows are absent.
        delivered_per_hour: accepted events including duplicates: the live table before dropping late events.
        droppable_per_hour: the part of `delivered_per_hour` that a live query may drop: events whose window ended more
            than the watermark before an event in an earlier object (or in one up to `live_slack_files - 1` later). This
                is
            an upper bound, since batches decide which events are dropped. The live table's count lies between the
            difference and `delivered_per_hour`.
    """

    settings: dict[str, Any]
    files: int
    size_bytes: int
    pieces: int
    distinct_events: int
    bronze_rows: dict[str, int]
    quarantine_rows: dict[str, int]
    events_per_hour: dict[HourAndName, int]
    bookings_per_hour: dict[datetime, Bookings]
    daily_active_users: dict[date, int]
    retention: dict[date, Cohort]
    delivered_per_hour: dict[HourAndName, int]
    droppable_per_hour: dict[HourAndName, int]

    @property
    def accepted_rows(self) -> int:
        """Rows of the `events` table."""
        return self.bronze_rows.get("events", 0)

    @property
    def quarantined_rows(self) -> int:
        """Rows of the quarantine table."""
        return sum(self.quarantine_rows.values())

    @property
    def quarantine_reasons(self) -> dict[str, int]:
        """Rows of the quarantine table per reason, for objects landed unchanged."""
        return self._count_reasons(QUARANTINE_REASONS)

    @property
    def collector_quarantine_reasons(self) -> dict[str, int]:
        """Rows of the quarantine table per reason, for events posted to a collector, which wraps each in an
        envelope."""
        return self._count_reasons(QUARANTINE_REASONS | COLLECTOR_REASONS)

    def _count_reasons(self, reason_of: Mapping[str, str]) -> dict[str, int]:
        reasons: Counter[str] = Counter()
        for kind, rows in self.quarantine_rows.items():
            reasons[reason_of[kind]] += rows
        return dict(sorted(reasons.items()))

    @property
    def bookings(self) -> Decimal:
        """The sum of all amounts."""
        return sum((hour.amount for hour in self.bookings_per_hour.values()), Decimal("0.00"))

    def to_json(self) -> bytes:
        """Returns the expected results as JSON, readable by `from_json`."""
        plain = {
            "settings": self.settings,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "pieces": self.pieces,
            "distinct_events": self.distinct_events,
            "bronze_rows": self.bronze_rows,
            "quarantine_rows": self.quarantine_rows,
            "quarantine_reasons": self.quarantine_reasons,
            "events_per_hour": _hour_rows(self.events_per_hour),
            "bookings_per_hour": [
                [hour.isoformat(), str(sold.amount), sold.purchases] for hour, sold in self.bookings_per_hour.items()
            ],
            "daily_active_users": {day.isoformat(): users for day, users in self.daily_active_users.items()},
            "retention": {day.isoformat(): cohort._asdict() for day, cohort in self.retention.items()},
            "delivered_per_hour": _hour_rows(self.delivered_per_hour),
            "droppable_per_hour": _hour_rows(self.droppable_per_hour),
        }
        return orjson.dumps(plain, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes) -> GamesTruth:
        """Reads the output of `to_json`."""
        plain = orjson.loads(data)
        plain.pop("quarantine_reasons")
        for name in ("events_per_hour", "delivered_per_hour", "droppable_per_hour"):
            plain[name] = {(datetime.fromisoformat(hour), event): count for hour, event, count in plain[name]}
        plain["bookings_per_hour"] = {
            datetime.fromisoformat(hour): Bookings(Decimal(amount), purchases)
            for hour, amount, purchases in plain["bookings_per_hour"]
        }
        plain["daily_active_users"] = {
            date.fromisoformat(day): users for day, users in plain["daily_active_users"].items()
        }
        plain["retention"] = {date.fromisoformat(day): Cohort(**cohort) for day, cohort in plain["retention"].items()}
        return cls(**plain)

    def write(self, path: Path) -> None:
        """Writes the expected results as a JSON file."""
        path.write_bytes(self.to_json())

    @classmethod
    def read(cls, path: Path) -> GamesTruth:
        """Reads a file written by `write`."""
        return cls.from_json(path.read_bytes())


def _hour_rows(counts: dict[HourAndName, int]) -> list[list[Any]]:
    return [[hour.isoformat(), name, count] for (hour, name), count in counts.items()]


# Hours and days since the epoch: integers while counting.
_HourCounts = Counter[tuple[int, str]]


@dataclass(slots=True)
class TruthCounter:
    """Counts objects as they are closed, in order of delivery. Memory grows with hours and devices, not events."""

    settings: GamesSettings
    _files: int = 0
    _bytes: int = 0
    _pieces: int = 0
    _rows: Counter[str] = field(default_factory=Counter)
    _faults: Counter[str] = field(default_factory=Counter)
    _delivered: _HourCounts = field(default_factory=Counter)
    _distinct: _HourCounts = field(default_factory=Counter)
    _cents: Counter[int] = field(default_factory=Counter)
    _active: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _installed: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _droppable: _HourCounts = field(default_factory=Counter)
    _pending: deque[_HourCounts] = field(default_factory=deque)
    _max_event_seconds: int = 0

    def count_file(self, index: int, records: Sequence[Record], size_bytes: int) -> None:
        """Counts one object. Of two copies of an event, the one in the object with the lower `index` counts as
        first."""
        self._files += 1
        self._bytes += size_bytes
        self._pieces += len(records)
        max_event_seconds = self._max_event_seconds
        delivered: _HourCounts = Counter()
        for record in records:
            if record.fault is not None:
                self._faults[record.fault] += 1
                continue
            hour = record.event_time // 3_600
            delivered[hour, record.name] += 1
            max_event_seconds = max(max_event_seconds, record.event_time)
            if record.copy_pair is None or record.copy_pair.first_file == index:
                self._count_distinct(record, hour)
        self._delivered.update(delivered)
        self._pending.append(delivered)
        while len(self._pending) > self.settings.live_slack_files:
            self._count_droppable()
        self._max_event_seconds = max_event_seconds

    def _count_distinct(self, record: Record, hour: int) -> None:
        self._distinct[hour, record.name] += 1
        self._active[hour // 24].add(record.device)
        if record.name == "purchase":
            self._cents[hour] += record.cents
        elif record.name == "install":
            self._installed[hour // 24].add(record.device)

    def _count_droppable(self) -> None:
        """Counts droppable events of the oldest pending object, using the latest event time of all objects before the
        current one.
        """
        for (hour, name), count in self._pending.popleft().items():
            if (hour + WINDOW_HOURS) * 3_600 <= self._max_event_seconds - WATERMARK_SECONDS:
                self._droppable[hour, name] += count

    def truth(self) -> GamesTruth:
        """Ends counting and returns the results."""
        while self._pending:
            self._count_droppable()
        per_table: Counter[str] = Counter()
        for (_, name), count in self._delivered.items():
            per_table[name] += count
        bronze = {"events": per_table.total(), **dict(sorted(per_table.items()))}
        return GamesTruth(
            settings=self.settings.as_mapping(),
            files=self._files,
            size_bytes=self._bytes,
            pieces=self._pieces,
            distinct_events=self._distinct.total(),
            bronze_rows=bronze,
            quarantine_rows=dict(sorted(self._faults.items())),
            events_per_hour=_by_hour(self._distinct),
            bookings_per_hour={
                _hour(hour): Bookings(Decimal(cents) / 100, self._distinct[hour, "purchase"])
                for hour, cents in sorted(self._cents.items())
            },
            daily_active_users={_day(day): len(devices) for day, devices in sorted(self._active.items())},
            retention={_day(day): self._cohort(day) for day in sorted(self._installed)},
            delivered_per_hour=_by_hour(self._delivered),
            droppable_per_hour=_by_hour(self._droppable),
        )

    def _cohort(self, day: int) -> Cohort:
        installed = self._installed[day]
        one, seven = (
            len(installed & self._active.get(day + days_later, set())) if day + days_later + 1 in self._active else None
            for days_later in RETENTION_DAYS
        )
        return Cohort(len(installed), one, seven)


def _hour(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3_600, UTC)


def _day(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


def _by_hour(counts: _HourCounts) -> dict[HourAndName, int]:
    return {(_hour(hour), name): count for (hour, name), count in sorted(counts.items())}
