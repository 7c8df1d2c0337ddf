"""Specs of dashboards: pages of panels, each with one time-bounded query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import KeyPath, Name, Problem, Spec, as_tuple, raise_problems

MAX_PANELS: Final = 20
#: SQL parameters of a panel. Both are timestamps with time zone; `$from` is inclusive, `$to` exclusive.
PARAMETERS: Final = ("from", "to")
Chart = Literal["line", "area", "bar", "number", "histogram", "table"]
#: Format of y values, or of x values in a histogram. The value 0.12 is formatted as 0.12 %.
Unit = Literal["percent", "bytes", "seconds", "milliseconds", "per_second", "money"]
#: Required and optional columns per chart type.
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "line": (("x", "y"), ("by",)),
    "area": (("x", "y"), ("by",)),
    "bar": (("x", "y"), ("by",)),
    "number": (("y",), ("x",)),
    "histogram": (("x",), ("y",)),
    "table": ((), ()),
}


class PanelSpec(Spec):
    """A query and its chart.

    The SQL has DuckDB's dialect. It reads tables and views of the pipeline by their bare names, with a condition on
    `$from` and usually `$to`. The keys `x`, `y` and `by` name result columns. A `number` shows the only row or, with
    `x`, the row with the greatest `x` and a line of all rows. A `histogram` counts values of `x`, or takes the counts
    from `y`.
    """

    title: str = Field(min_length=1, max_length=120)
    chart: Chart
    sql: str
    x: str | None = None
    y: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(), max_length=8, description="a column, or several of them, each drawn as a series"
    )
    by: str | None = Field(default=None, description="a column with the names of series")
    unit: Unit | None = None
    wide: bool = Field(default=False, description="full page width")
    description: str = ""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        raise_problems([*self._column_problems()])
        return self

    def _column_problems(self) -> Iterator[Problem]:
        required, optional = _COLUMNS[self.chart]
        for key in required:
            if not getattr(self, key):
                yield (key,), f"the chart {self.chart} needs {key}, a column of its result"
        for key in ("x", "y", "by"):
            if getattr(self, key) and key not in (*required, *optional):
                advice = f"it supports {', '.join((*required, *optional)) or 'none: all columns are shown'}"
                yield (key,), f"the chart {self.chart} has no {key}; {advice}"
        if len(self.y) > 1 and (self.by is not None or self.chart in ("number", "histogram")):
            other = "with `by`" if self.by is not None else f"of kind {self.chart}"
            yield ("y",), f"a panel {other} has one y; write a panel for each"

    def result_columns(self) -> Iterator[tuple[KeyPath, str]]:
        """Yields the result columns that the panel names, each with its key path."""
        if self.x is not None:
            yield ("x",), self.x
        for index, name in enumerate(self.y):
            yield (("y",) if len(self.y) == 1 else ("y", index)), name
        if self.by is not None:
            yield ("by",), self.by


class DashboardSpec(Spec):
    """A page of panels that show the same time range. By default the range ends now."""

    name: Name
    title: str = ""
    description: str = ""
    refresh_seconds: int = Field(default=60, ge=5, le=86_400, description="refresh interval of the page in Airflow")
    hours: float = Field(default=24, gt=0, le=24 * 400, description="default time range")
    panels: tuple[PanelSpec, ...] = Field(min_length=1, max_length=MAX_PANELS)


def dashboard_problems(dashboards: tuple[DashboardSpec, ...]) -> Iterator[Problem]:
    """Yields dashboards with the name of an earlier one."""
    first: dict[str, int] = {}
    for index, dashboard in enumerate(dashboards):
        if dashboard.name in first:
            others: tuple[KeyPath, ...] = (("dashboards", first[dashboard.name], "name"),)
            yield ("dashboards", index, "name"), f"dashboard {dashboard.name} is declared twice; rename one", others
        first.setdefault(dashboard.name, index)
