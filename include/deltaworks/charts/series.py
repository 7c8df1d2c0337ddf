"""Converts columns of values into series over one x axis."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

from deltaworks.charts.scales import (
    Tick,
    format_cell,
    format_time,
    number_steps,
    number_ticks,
    time_ticks,
    to_number,
    to_utc,
)

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
