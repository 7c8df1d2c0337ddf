"""What a simulated game is made of and how much goes wrong in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from typing import Any

from deltaworks.errors import ConfigError

# What one player brings over all days, 7.5 + 8 * days**0.62: fitted to simulations of 1 to 30 days.
_EVENTS_PER_PLAYER = 7.5
_EVENTS_PER_PLAYER_AND_DAY = 8.0
_DECAY_WITH_DAYS = 0.62


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Shares of all events, each between 0 and 1.

    Attributes:
        duplicates: sent a second time with the same event id, stamped again by the server up to 20 hours later.
        late: kept back by the collector, so delivered half an hour to `late_max_hours` after the event time.
        malformed: pieces that hold no event: cut off, garbage, broken UTF-8, no object, or no readable body.
        without_time: events whose `eventTime` is absent or null.
        unknown_name: events no table is declared for.
        type_mismatch: a required number that holds a word.
        missing_required: events lacking a required value, their event id or their device id.
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
        """Nothing goes wrong."""
        return cls(**{rate.name: 0.0 for rate in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesSettings:
    """Everything that decides the emitted bytes.

    Attributes:
        players: how many there are; with `target_events` their number follows from it instead.
        target_events: about how many events to make (within 15 % from 20,000 on).
        events_per_file: an object is closed when it holds so many pieces,
        buffer_seconds: or when so many simulated seconds have passed since its first.
        min_copy_distance_files: two copies of one event lie at least so many objects apart, so that the order in which
            objects are landed, announced and logged may differ by fewer than that without changing which came first.
        live_slack_files: by how many objects that order may differ without an event counting as droppable too few.
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
        """The number of players simulated."""
        if self.target_events is None:
            return self.players
        per_player = _EVENTS_PER_PLAYER + _EVENTS_PER_PLAYER_AND_DAY * self.days**_DECAY_WITH_DAYS
        return max(1, int(self.target_events / per_player + 0.5))

    @property
    def start_seconds(self) -> int:
        """Midnight UTC of the first day, in epoch seconds."""
        return int(datetime(self.start_date.year, self.start_date.month, self.start_date.day, tzinfo=UTC).timestamp())

    def as_mapping(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return asdict(self) | {"start_date": self.start_date.isoformat()}


def _invalid_setting(problem: str) -> ConfigError:
    return ConfigError(
        "GENERATOR_SETTING_INVALID", f"The generator's settings are wrong: {problem}.", hint="Correct the option."
    )
