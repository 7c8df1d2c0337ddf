"""Settings of the simulated sales platform: organisations, activities, and change requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from typing import Any

from deltaworks.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngagementRates:
    """Shares, each between 0 and 1.

    Attributes:
        late_activities: activities delivered up to `late_max_hours` after their time, with the contact id of that time.
        late_requests: requests delivered up to `late_max_hours` after their time.
        duplicates: activities and requests delivered twice, unchanged.
        repeated_requests: requests sent again with another `seq`.
        cascades: renames and merges of an id that recently became the new id of another.
        cycles: renames to an id that was renamed before.
        self_renames: renames of an id to itself.
        swaps: pairs of renames at one time that swap two ids.
        ties: renames and deletes with another move of the same id at the same time.
        unknown_targets: requests for an id that is not used yet.
        reused_ids: new contacts with an id that another contact had before.
        stale_ids: activities with an id that was renamed before, which count as activities of another contact.
        malformed: activities truncated in transit.
    """

    late_activities: float = 0.02
    late_requests: float = 0.03
    duplicates: float = 0.01
    repeated_requests: float = 0.02
    cascades: float = 0.5
    cycles: float = 0.15
    self_renames: float = 0.01
    swaps: float = 0.03
    ties: float = 0.03
    unknown_targets: float = 0.03
    reused_ids: float = 0.05
    stale_ids: float = 0.02
    malformed: float = 0.001

    def __post_init__(self) -> None:
        for rate in fields(self):
            value = getattr(self, rate.name)
            if not 0 <= value <= 1:
                raise _invalid_setting(f"the rate {rate.name} is {value}; a rate lies between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngagementSettings:
    """All settings that determine the emitted bytes.

    Attributes:
        activities: number of activities, without duplicates.
        organisations: number of organisations; the n-th has a share proportional to 1 / n ** `skew`.
        requests_per_hundred: requests per hundred activities.
        new_contacts: share of activities that are the first of a contact.
    """

    seed: int = 1
    activities: int = 100_000
    organisations: int = 300
    skew: float = 1.1
    days: int = 30
    start_date: date = date(2024, 3, 4)
    requests_per_hundred: float = 20.0
    new_contacts: float = 0.15
    late_max_hours: float = 72.0
    rates: EngagementRates = field(default_factory=EngagementRates)

    def __post_init__(self) -> None:
        for name in ("activities", "organisations", "days"):
            if getattr(self, name) < 1:
                raise _invalid_setting(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.requests_per_hundred < 0 or self.late_max_hours <= 0 or self.skew < 0:
            raise _invalid_setting("requests_per_hundred and skew must be 0 or more, late_max_hours more than 0")
        if not 0 < self.new_contacts <= 1:
            raise _invalid_setting("new_contacts is a share, more than 0 and at most 1")

    @property
    def start_ms(self) -> int:
        """Midnight UTC of the first day, in milliseconds since 1970."""
        return (
            int(datetime(self.start_date.year, self.start_date.month, self.start_date.day, tzinfo=UTC).timestamp())
            * 1000
        )

    def as_mapping(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return asdict(self) | {"start_date": self.start_date.isoformat()}


def _invalid_setting(problem: str) -> ConfigError:
    return ConfigError("GENERATOR_SETTING_INVALID", f"The generator's settings are wrong: {problem}.")
