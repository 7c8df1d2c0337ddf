"""Scales and ticks of chart axes.

Number steps are 1, 2, 2.5 or 5 times a power of ten (P. Heckbert, "Nice numbers for graph labels", Graphics Gems,
1990); time steps follow clock and calendar units.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deltaworks.dashboards.values import format_short
from deltaworks.specs.dashboards import Unit

_DAY = 86_400
#: Steps of time ticks in seconds. Longer steps are in months.
_TIME_STEP_SECONDS: Final = (
    *(1, 5, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
)
_MONTH_STEPS: Final = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1_200)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`. `start` may be greater than `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the pixel position of a value, rounded to 0.1 and clipped to the range."""
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis: value and label."""

    value: float
    label: str


def number_steps(low: float, high: float, *, max_steps: int) -> list[float]:
    """Returns about `max_steps` round numbers that cover `low` to `high`."""
    # Ranges below double precision count as empty.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        high = low + (abs(low) or 1.0)
    step = nice_step((high - low) / max(max_steps - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def nice_step(step: float) -> float:
    """Returns the smallest round step that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def number_ticks(steps: Sequence[float], unit: Unit | None) -> list[Tick]:
    """Returns a tick for each value."""
    return [Tick(value, format_short(value, unit)) for value in steps]


def time_ticks(low: float, high: float, *, max_ticks: int, dates: bool = False) -> list[Tick]:
    """Returns ticks between two Unix times, labelled in UTC. For dates, ticks are at midnight only."""
    steps = (step for step in _TIME_STEP_SECONDS if step >= _DAY or not dates)
    step = next((step for step in steps if (high - low) / step <= max_ticks), None)
    if step is None:
        return list(_month_ticks(low, high, max_ticks))
    first = math.ceil(low / step) * step
    return [Tick(at, _time_label(at, step)) for at in range(first, math.floor(high) + 1, step)]


def _time_label(at: int, step: int) -> str:
    time = dt.datetime.fromtimestamp(at, dt.UTC)
    if step >= _DAY or at % _DAY == 0:
        return f"{time.day} {time:%b}"
    return f"{time:%H:%M}" if step >= 60 else f"{time:%H:%M:%S}"


def _month_ticks(low: float, high: float, max_ticks: int) -> Iterator[Tick]:
    months = (high - low) / (30.4 * _DAY)
    step = next((step for step in _MONTH_STEPS if months / step <= max_ticks), _MONTH_STEPS[-1])
    time = dt.datetime.fromtimestamp(low, dt.UTC)
    number = math.ceil((12 * time.year + time.month - 1) / step) * step
    while number < 12 * dt.MAXYEAR:
        time = dt.datetime(number // 12, number % 12 + 1, 1, tzinfo=dt.UTC)
        if time.timestamp() > high:
            return
        if time.timestamp() >= low:
            yield Tick(time.timestamp(), f"{time:%Y}" if step >= 12 else f"{time:%b %Y}")
        number += step
