"""Series of values over one x axis, the axes' scales and ticks, and formats of values.

Number steps are 1, 2, 2.5 or 5 times a power of ten (P. Heckbert, "Nice numbers for graph labels", Graphics Gems,
1990); time steps follow clock and calendar units. Times are in UTC.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal

from deltaworks.specs.dashboards import Unit

_THOUSANDS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_SECONDS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MAX_TEXT_LENGTH = 200
_DAY = 86_400
#: Steps of time ticks in seconds. Longer steps are in months.
_TIME_STEP_SECONDS: Final = (
    *(1, 5, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
)
_MONTH_STEPS: Final = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1_200)


def to_number(value: Any) -> float | None:
    """Converts a result value to a number; None for null and non-finite values.

    Raises:
        TypeError: the value is not a number.
    """
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float | Decimal):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    number = float(value)
    return number if math.isfinite(number) else None


def format_short(value: float, unit: Unit | None) -> str:
    """Formats a number for an axis, with few digits."""
    if unit in ("bytes", "seconds", "milliseconds"):
        return _format_scaled(value, unit)
    for size, letter in _THOUSANDS:
        if abs(value) >= size:
            return f"{_format_digits(value / size, 3)}{letter}{_suffix(unit)}"
    return f"{_format_digits(value, 3)}{_suffix(unit)}"


def format_full(value: float, unit: Unit | None) -> str:
    """Formats a number for a table or tooltip, with more digits."""
    if unit in ("bytes", "seconds", "milliseconds"):
        return _format_scaled(value, unit)
    if unit == "money":
        return f"{value:,.2f}"
    text = f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else _format_digits(value, 4)
    return f"{text}{_suffix(unit)}"


def _suffix(unit: Unit | None) -> str:
    return {"percent": " %", "per_second": "/s"}.get(unit or "", "")


def _format_scaled(value: float, unit: Unit) -> str:
    """Formats a number with a unit prefix."""
    if value == 0:
        return {"bytes": "0 B", "seconds": "0 s"}.get(unit, "0 ms")
    value = value / 1000 if unit == "milliseconds" else value
    smallest = "B" if unit == "bytes" else "s"
    for size, name in _BYTES if unit == "bytes" else _SECONDS:
        if abs(value) >= size:
            return f"{_format_digits(value / size, 3)} {name}"
    return f"{_format_digits(value, 3)} {smallest}"


def _format_digits(value: float, digits: int) -> str:
    """Formats significant digits without trailing zeros or exponent."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_cell(value: Any, unit: Unit | None = None) -> str:
    """Formats any result value as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Decimal) and unit is None and value.is_finite():
        return f"{value:,f}"
    if isinstance(value, int | float | Decimal):
        return format_full(float(value), unit) if math.isfinite(value) else str(value)
    if isinstance(value, dt.datetime):
        return format_time(value)
    text = str(value)
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"


def to_utc(value: dt.datetime) -> dt.datetime:
    """Converts a timestamp to UTC. Timestamps without a zone are taken as UTC."""
    return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


def format_time(value: dt.datetime) -> str:
    """Formats a time in UTC, with seconds unless they are zero."""
    value = to_utc(value)
    return f"{value:%Y-%m-%d %H:%M:%S}" if value.second or value.microsecond else f"{value:%Y-%m-%d %H:%M}"


def format_age(seconds: float) -> str:
    """Formats an age, for example `40 s`, `12 min`, `5 h` or `3 days`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:,.0f} days"


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`. `start` may be greater than `end`.

    A logarithmic scale needs `low` above zero.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Returns the pixel position of a value, rounded to 0.1 and clipped to the range."""
        low, value, high = self.low, min(max(value, self.low), self.high), self.high
        if self.is_log:
            low, value, high = math.log10(low), math.log10(value), math.log10(high)
        return round(self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start), 1)


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


def log_steps(low: float, high: float) -> list[float]:
    """Returns round numbers that cover `low` to `high` on a logarithmic axis: powers of ten, for up to two decades also
    2 and 5 times each. `low` must be above zero.
    """
    first, last = math.floor(math.log10(low)), max(math.ceil(math.log10(high)), math.floor(math.log10(low)) + 1)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    steps = [factor * 10.0**power for power in range(first, last) for factor in factors] + [10.0**last]
    start = max((step for step in steps if step <= low), default=steps[0])
    end = min((step for step in steps if step >= high and step > start), default=steps[-1])
    return [step for step in steps if start <= step <= end]


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


# Series.

#: Maximum number of series that colours can distinguish.
MAX_SERIES = 8
OTHER = "other"
#: The kind of an x axis: Unix times, numbers, or texts by index.
AxisKind = Literal["time", "number", "text"]


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one series by x position. A null value is None; a position without a row is absent."""

    name: str
    values: Mapping[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSet:
    """The series over one x axis, largest first. `positions` ascend; `labels` exist for texts and dates.

    - `is_named`: whether the legend and tooltips show the names of the series.
    - `omitted_count`: number of series beyond the limit. They are summed as OTHER if additive, otherwise not shown.
    """

    kind: AxisKind
    positions: tuple[float, ...]
    series: tuple[Series, ...]
    labels: Mapping[float, str]
    is_named: bool
    is_dates: bool = False
    omitted_count: int = 0

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last position."""
        return self.positions[0], self.positions[-1]

    @property
    def step(self) -> float:
        """The smallest distance between positions; a day if there is a single date."""
        distances = [after - before for before, after in pairwise(self.positions)]
        return min(distances, default=86_400.0 if self.is_dates else 3_600.0 if self.kind == "time" else 1.0)

    def label(self, x: float) -> str:
        """Returns the label of a position."""
        if x in self.labels:
            return self.labels[x]
        return format_time(dt.datetime.fromtimestamp(x, dt.UTC)) if self.kind == "time" else format_cell(x)

    def ticks(self, span: tuple[float, float], *, max_ticks: int) -> list[Tick]:
        """Returns the ticks of the x axis."""
        if self.kind == "time":
            return time_ticks(*span, max_ticks=max_ticks, dates=self.is_dates)
        if self.kind == "number":
            steps = number_steps(*span, max_steps=max_ticks)
            return [tick for tick in number_ticks(steps, None) if span[0] <= tick.value <= span[1]]
        every = -(-len(self.positions) // max_ticks)
        return [Tick(x, self.labels[x]) for x in self.positions[::every]]

    def hover_text(self, item: Series, value: str) -> str:
        """Returns a value with the name of its series."""
        return f"{item.name[:40]}  {value}" if self.is_named else value


def build_series(
    x: Sequence[Any], columns: Mapping[str, Sequence[Any]], *, by: Sequence[Any] | None = None, additive: bool
) -> SeriesSet:
    """Builds the series of a line, area or bar chart from columns of equal length.

    Args:
        columns: the y values by series name.
        by: the name of the series of each row, in place of the name of the column.
        additive: whether several values at one position, and the series beyond the limit, are summed.

    Raises:
        TypeError: y is not a number, or x has mixed types.
    """
    kind, positions, labels, dates = _detect_axis(x)
    by_name: dict[str, dict[float, float | None]] = {}
    names = None if by is None else [_series_name(value) for value in by]
    for column, column_values in columns.items():
        for number, value in enumerate(column_values):
            values = by_name.setdefault(column if names is None else names[number], {})
            position, number_value = positions[number], to_number(value)
            previous = values.get(position) if additive else None
            values[position] = number_value if previous is None else previous + (number_value or 0.0)
    series = [Series(name, values) for name, values in by_name.items()]
    if names is not None:
        series.sort(key=lambda item: -sum(abs(value or 0.0) for value in item.values.values()))
    omitted_count = max(0, len(series) - MAX_SERIES)
    if omitted_count:
        series, omitted = series[: MAX_SERIES - additive], series[MAX_SERIES - additive :]
        omitted_count = len(omitted)
        series += [_sum_series(omitted)] if additive else []
    return SeriesSet(
        kind=kind,
        positions=tuple(sorted({*positions})),
        series=tuple(series),
        labels=labels,
        is_named=names is not None or len(series) > 1,
        is_dates=dates,
        omitted_count=omitted_count,
    )


def named_series(lines: Mapping[str, Sequence[tuple[Any, Any]]]) -> SeriesSet:
    """Builds series from the points of each, in the given order. Give MAX_SERIES at most.

    Raises:
        TypeError: y is not a number, or x has mixed types.
    """
    kind, positions, labels, dates = _detect_axis([x for points in lines.values() for x, _ in points])
    following = iter(positions)
    series = [Series(name, {next(following): to_number(y) for _, y in points}) for name, points in lines.items()]
    return SeriesSet(
        kind=kind,
        positions=tuple(sorted({*positions})),
        series=tuple(series),
        labels=labels,
        is_named=True,
        is_dates=dates,
    )


def _sum_series(series: list[Series]) -> Series:
    sums: dict[float, float | None] = {}
    for item in series:
        for position, value in item.values.items():
            sums[position] = (sums.get(position) or 0.0) + (value or 0.0)
    return Series(OTHER, sums)


def _series_name(value: Any) -> str:
    return "(null)" if value is None else format_cell(value) or "(empty)"


def _detect_axis(values: Sequence[Any]) -> tuple[AxisKind, list[float], dict[float, str], bool]:
    """Returns the kind of the x axis, the position of each value, labels by position, and whether values are dates."""
    present = [value for value in values if value is not None]
    if len(present) < len(values) and not any(isinstance(value, str) for value in present):
        raise TypeError("x is null in some rows")
    if all(isinstance(value, dt.date) for value in present):
        dates = all(not isinstance(value, dt.datetime) for value in present)
        positions = [_epoch_seconds(value) for value in present]
        labels = (
            {position: value.isoformat() for position, value in zip(positions, present, strict=True)} if dates else {}
        )
        return "time", positions, labels, dates
    if all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in present):
        return "number", [float(value) for value in present], {}, False
    texts = [_series_name(value) for value in values]
    order = {text: float(number) for number, text in enumerate(dict.fromkeys(texts))}
    return "text", [order[text] for text in texts], {position: text for text, position in order.items()}, False


def _epoch_seconds(value: dt.date) -> float:
    time = value if isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())
    return to_utc(time).timestamp()
