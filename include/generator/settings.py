"""Settings of the simulated game: its size and fault rates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any

from deltaworks.errors import ConfigError

# Events per player over all days, 7.5 + 8 * days**0.62: fitted to simulations of 1 to 30 days.
_EVENTS_PER_PLAYER = 7.5
_EVENTS_PER_PLAYER_AND_DAY = 8.0
_DECAY_WITH_DAYS = 0.62


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Shares of all events, each between 0 and 1.

    Attributes:
        duplicates: sent twice with the same event id; the server sets the second time up to 20 hours later.
        late: delayed by the collector: delivered half an hour to `late_max_hours` after the event time.
        malformed: records without an event: truncated, garbage, invalid UTF-8, no object, or an unreadable body.
        without_time: events whose `eventTime` is missing or null.
        unknown_name: events without a declared table.
        type_mismatch: events with text in a required number.
        missing_required: events without a required value, event id or device id.
    """

    duplicates: float = 0.01
    late: float = 0.01
    malformed: float = 0.002
    without_time: float = 0.0005
    unknown_name: float = 0.001
    type_mismatch: float = 0.0005
    missing_required: float = 0.0005

    def __post_init__(self) -> None:
        for rate in fields(self):
            value = getattr(self, rate.name)
            if not 0 <= value <= 1:
                raise _invalid_setting(f"the rate {rate.name} is {value}; a rate lies between 0 and 1")

    @classmethod
    def none(cls) -> FaultRates:
        """Returns fault rates of zero."""
        return cls(**{rate.name: 0.0 for rate in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesSettings:
    """All settings that determine the emitted bytes.

    Attributes:
        players: number of players; ignored with `target_events`.
        target_events: approximate number of events (within 15 % from 20,000 on).
        events_per_file: maximum records per object.
        buffer_seconds: maximum simulated seconds from an object's first record until it is closed.
        min_copy_distance_files: minimum distance in objects between two copies of one event. Objects may land, be
            announced and be logged out of order by less than this distance without changing which copy came first.
        live_slack_files: number of objects by which that order may differ before `droppable_per_hour` is too low.
    """

    seed: int = 1
    players: int = 1_000
    days: int = 10
    start_date: date = date(2024, 3, 1)
    target_events: int | None = None
    events_per_file: int = 1_000
    buffer_seconds: int = 900
    min_copy_distance_files: int = 20
    live_slack_files: int = 1
    late_max_hours: float = 72.0
    prefix: str = "games/"
    rates: FaultRates = field(default_factory=FaultRates)

    def __post_init__(self) -> None:
        for name in ("players", "days", "events_per_file", "buffer_seconds", "min_copy_distance_files"):
            if getattr(self, name) < 1:
                raise _invalid_setting(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.target_events is not None and self.target_events < 1:
            raise _invalid_setting(f"target_events is {self.target_events}; it must be 1 or more")
        if self.live_slack_files < 0:
            raise _invalid_setting(f"live_slack_files is {self.live_slack_files}; it must be 0 or more")
        if self.late_max_hours <= 0.5:
            raise _invalid_setting("late_max_hours must be more than 0.5, the least delay of a late event")

    @property
    def player_count(self) -> int:
        """The number of simulated players."""
        if self.target_events is None:
            return self.players
        per_player = _EVENTS_PER_PLAYER + _EVENTS_PER_PLAYER_AND_DAY * self.days**_DECAY_WITH_DAYS
        return max(1, int(self.target_events / per_player + 0.5))

    @property
    def start_seconds(self) -> int:
        """Midnight UTC of the first day, in epoch seconds."""
        return int(datetime(self.start_date.year, self.start_date.month, self.start_date.day, tzinfo=UTC).timestamp())

    def as_mapping(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return asdict(self) | {"start_date": self.start_date.isoformat()}


def first_day(until: date, *, days: int) -> date:
    """Returns the first of `days` days of play whose events all end before `until`.

    A day remains in between, because devices send duplicates up to 20 hours later.
    """
    return until - timedelta(days=days + 1)


def _invalid_setting(problem: str) -> ConfigError:
    return ConfigError("GENERATOR_SETTING_INVALID", f"The generator's settings are wrong: {problem}.")
