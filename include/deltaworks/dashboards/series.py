"""The answer of a panel as series over one axis."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

from deltaworks.dashboards.answers import PanelAnswer
from deltaworks.dashboards.values import cell, number_of, utc

#: More are not told apart by their colours.
MOST_SERIES = 8
OTHER = "other"
#: What an axis is of: instants in seconds since 1970, numbers, or texts by their place.
Kind = Literal["time", "number", "text"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values by place on the axis; null where the answer says null, and absent where it has no row."""

    name: str
    values: Mapping[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSet:
    """Series over one axis, the largest first. `xs` ascend; `labels` are of texts and of dates, by place.

    `left_over` is how many series more there were: summed up as OTHER where series add up, else not shown.
    """

    kind: Kind
    xs: tuple[float, ...]
    series: tuple[Series, ...]
    labels: Mapping[float, str]
    dates: bool = False
    left_over: int = 0

    @property
    def step(self) -> float:
        """The least distance between two places; a day between dates, where there is one only."""
        distances = [after - before for before, after in pairwise(self.xs)]
        return min(distances, default=86_400.0 if self.dates else 3_600.0 if self.kind == "time" else 1.0)


def series_of(answer: PanelAnswer, *, additive: bool) -> SeriesSet:
    """The series of a line, an area or bars.

    Args:
        additive: several values of one series at one place add up, as do the series that are too many.

    Raises:
        TypeError: y is no number, or x of several kinds.
    """
    panel = answer.panel
    kind, places, labels, dates = _axis(answer.column(panel.x or ""))
    by_name: dict[str, dict[float, float | None]] = {}
    names = None if panel.by is None else [_name(value) for value in answer.column(panel.by)]
    for column in panel.y:
        for number, value in enumerate(answer.column(column)):
            values = by_name.setdefault(column if names is None else names[number], {})
            place, read = places[number], number_of(value)
            before = values.get(place) if additive else None
            values[place] = read if before is None else before + (read or 0.0)
    series = [Series(name, values) for name, values in by_name.items()]
    if names is not None:
        series.sort(key=lambda item: -sum(abs(value or 0.0) for value in item.values.values()))
    left_over = max(0, len(series) - MOST_SERIES)
    if left_over:
        series, rest = series[: MOST_SERIES - additive], series[MOST_SERIES - additive :]
        left_over = len(rest)
        series += [_summed(rest)] if additive else []
    xs = tuple(sorted({*places}))
    return SeriesSet(kind=kind, xs=xs, series=tuple(series), labels=labels, dates=dates, left_over=left_over)


def _summed(series: list[Series]) -> Series:
    sums: dict[float, float | None] = {}
    for item in series:
        for place, value in item.values.items():
            sums[place] = (sums.get(place) or 0.0) + (value or 0.0)
    return Series(OTHER, sums)


def _name(value: Any) -> str:
    return "(null)" if value is None else cell(value) or "(empty)"


def _axis(values: list[Any]) -> tuple[Kind, list[float], dict[float, str], bool]:
    """The kind of an axis, the place of each value, labels by place, and whether they are dates."""
    present = [value for value in values if value is not None]
    if len(present) < len(values) and not any(isinstance(value, str) for value in present):
        raise TypeError("x is null in some rows")
    if all(isinstance(value, dt.date) for value in present):
        dates = all(not isinstance(value, dt.datetime) for value in present)
        places = [_instant(value) for value in present]
        labels = {place: value.isoformat() for place, value in zip(places, present, strict=True)} if dates else {}
        return "time", places, labels, dates
    if all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in present):
        return "number", [float(value) for value in present], {}, False
    texts = [_name(value) for value in values]
    order = {text: float(number) for number, text in enumerate(dict.fromkeys(texts))}
    return "text", [order[text] for text in texts], {place: text for text, place in order.items()}, False


def _instant(value: dt.date) -> float:
    time = value if isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())
    return utc(time).timestamp()
