"""Specs of dashboards: pages of panels, each with one time-bounded query."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import KeyPath, Name, Problem, Spec, as_tuple, raise_problems
from deltaworks.specs.spec_errors import closest_match

MAX_PANELS: Final = 20
#: SQL parameters of a panel. Both are timestamps with time zone; `$from` is inclusive, `$to` exclusive.
PARAMETERS: Final = ("from", "to")
#: Maximum filters of a dashboard, and segments.
MAX_FILTERS, MAX_SEGMENTS = 8, 20
#: Parameters of a page's address, which no filter may be called.
_ADDRESS_PARAMETERS: Final = frozenset({*PARAMETERS, "format", "fragment"})
Chart = Literal["line", "area", "bar", "number", "histogram", "table"]
#: Format of y values, or of x values in a histogram. The value 0.12 is formatted as 0.12 %.
Unit = Literal["percent", "bytes", "seconds", "milliseconds", "per_second", "money"]
#: Required and optional columns per chart type.
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "line": (("x", "y"), ("by", "band")),
    "area": (("x", "y"), ("by",)),
    "bar": (("x", "y"), ("by",)),
    "number": (("y",), ("x",)),
    "histogram": (("x",), ("y",)),
    "table": ((), ()),
}


class PanelSpec(Spec):
    """A query and its chart, or a rule and the chart of its values.

    The SQL has DuckDB's dialect. It reads tables and views of the pipeline by their bare names, with a condition on
    `$from` and usually `$to`. The keys `x`, `y` and `by` name result columns. A `number` shows the only row or, with
    `x`, the row with the greatest `x` and a line of all rows. A `histogram` counts values of `x`, or takes the counts
    from `y`. With `rule`, a line per label set of this rule, its band from the baseline to the firing bound, and its
    episodes.
    """

    title: str = Field(min_length=1, max_length=120)
    chart: Chart
    sql: str = Field(default="", description="a file with one SELECT")
    rule: Name | None = Field(default=None, description="a rule of the pipeline whose values are drawn, instead of SQL")
    x: str | None = None
    y: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(), max_length=8, description="a column, or several of them, each drawn as a series"
    )
    by: str | None = Field(default=None, description="a column with the names of series")
    band: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        default=(), max_length=2, description="two columns, the lower and the upper edge of a band behind the line"
    )
    unit: Unit | None = None
    wide: bool = Field(default=False, description="full page width")
    description: str = ""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        raise_problems([*self._column_problems()])
        return self

    def _column_problems(self) -> Iterator[Problem]:
        if self.rule is not None:
            yield from self._rule_problems()
            return
        if not self.sql:
            yield ("sql",), "give a file of the pipeline's folder with one SELECT, or a rule"
        required, optional = _COLUMNS[self.chart]
        for key in required:
            if not getattr(self, key):
                yield (key,), f"the chart {self.chart} needs {key}, a column of its result"
        if len(self.band) == 1:
            yield ("band",), "a band has two columns: its lower and its upper edge"
        for key in ("x", "y", "by", "band"):
            if getattr(self, key) and key not in (*required, *optional):
                advice = f"it supports {', '.join((*required, *optional)) or 'none: all columns are shown'}"
                yield (key,), f"the chart {self.chart} has no {key}; {advice}"
        if len(self.y) > 1 and (self.by is not None or self.chart in ("number", "histogram")):
            other = "with `by`" if self.by is not None else f"of kind {self.chart}"
            yield ("y",), f"a panel {other} has one y; write a panel for each"

    def _rule_problems(self) -> Iterator[Problem]:
        if self.chart != "line":
            yield ("chart",), f"the values of a rule are drawn as a line, not as {self.chart}"
        for key in ("sql", "x", "y", "by", "band"):
            if getattr(self, key):
                yield (key,), f"a panel with a rule has no {key}: the rule says what is drawn"

    def result_columns(self) -> Iterator[tuple[KeyPath, str]]:
        """Yields the result columns that the panel names, each with its key path."""
        if self.x is not None:
            yield ("x",), self.x
        for index, name in enumerate(self.y):
            yield (("y",) if len(self.y) == 1 else ("y", index)), name
        if self.by is not None:
            yield ("by",), self.by
        for index, name in enumerate(self.band):
            yield ("band", index), name


class SegmentSpec(Spec):
    """A named set of filter values."""

    name: str = Field(min_length=1, max_length=60)
    filters: Mapping[Name, str] = Field(min_length=1, description="value by filter")


class DashboardSpec(Spec):
    """A page of panels that show the same time range. By default the range ends now."""

    name: Name
    title: str = ""
    description: str = ""
    refresh_seconds: int = Field(default=60, ge=5, le=86_400, description="refresh interval of the page in Airflow")
    hours: float = Field(default=24, gt=0, le=24 * 400, description="default time range")
    filters: Annotated[tuple[Name, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        max_length=MAX_FILTERS,
        description="dimensions that the page filters by; each is a parameter of panels' SQL, null without a filter",
    )
    choices: str = Field(default="", description="a file with one SELECT of `filter` and `value`: what to choose from")
    segments: tuple[SegmentSpec, ...] = Field(default=(), max_length=MAX_SEGMENTS)
    panels: tuple[PanelSpec, ...] = Field(min_length=1, max_length=MAX_PANELS)

    @model_validator(mode="after")
    def _check_filters(self) -> Self:
        raise_problems([*self._filter_problems()])
        return self

    def _filter_problems(self) -> Iterator[Problem]:
        if bool(self.filters) != bool(self.choices):
            yield ("choices" if self.filters else "filters",), "filters and choices are declared together"
        for index, name in enumerate(self.filters):
            if name in _ADDRESS_PARAMETERS:
                yield ("filters", index), f"{name} is a parameter of the page already; use another name"
        for index, segment in enumerate(self.segments):
            for name in segment.filters:
                if name not in self.filters:
                    yield ("segments", index, "filters", name), _unknown_name("filter", name, self.filters)


def _unknown_name(kind: str, name: str, names: Collection[str]) -> str:
    nearest = closest_match(name, names)
    advice = f"did you mean {nearest}?" if nearest is not None else f"declared: {', '.join(names) or 'none'}"
    return f"there is no {kind} {name}; {advice}"


def dashboard_problems(dashboards: tuple[DashboardSpec, ...], rules: Collection[str]) -> Iterator[Problem]:
    """Yields dashboards with the name of an earlier one, and panels of rules that are not declared.

    Args:
        rules: names of the pipeline's rules.
    """
    first: dict[str, int] = {}
    for index, dashboard in enumerate(dashboards):
        if dashboard.name in first:
            others: tuple[KeyPath, ...] = (("dashboards", first[dashboard.name], "name"),)
            yield ("dashboards", index, "name"), f"dashboard {dashboard.name} is declared twice; rename one", others
        first.setdefault(dashboard.name, index)
        for number, panel in enumerate(dashboard.panels):
            if panel.rule is not None and panel.rule not in rules:
                yield ("dashboards", index, "panels", number, "rule"), _unknown_name("rule", panel.rule, rules)
