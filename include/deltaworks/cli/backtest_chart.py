"""Chart of a backtest: values over time and the number of firing label sets, as a dashboard page."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

from deltaworks.charts.drawing import Span
from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
from deltaworks.dashboards.page import dashboard_page
from deltaworks.rules.backtest import Backtest, ChartPoint, extreme_values
from deltaworks.rules.evaluation import minute_start
from deltaworks.rules.messages import bounds_text, labels_text
from deltaworks.rules.subjects import Labels
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec

#: Maximum number of points per line. If there are more, the most extreme one of each interval is drawn.
_MAX_POINTS = 1_500
#: Maximum number of drawn label sets: those that fired longest, then those with the most extreme values.
_MAX_LINES = 8


def backtest_page(pipeline: str, result: Backtest, start: dt.datetime, end: dt.datetime) -> str:
    """Returns the page as self-contained HTML."""
    rule = result.rule
    label_sets = _charted_label_sets(result)
    panels = [
        _panel(
            "Value",
            "line",
            "value",
            "labels",
            _lines(result, label_sets, "value"),
            f"Fires when {bounds_text(rule.fire)}.",
        ),
        _panel("Firing", "area", "label_sets", None, _firing(result), "Label sets firing at the same time."),
    ]
    if rule.baseline is not None and rule.baseline.kind != "fixed":
        baseline_rows = _lines(result, label_sets, "baseline")
        panels.insert(1, _panel("Baseline", "line", "baseline", "labels", baseline_rows, "The baseline of the values."))
    dashboard = DashboardSpec(
        name="backtest",
        title=f"{pipeline}.{rule.name}",
        description=f"{rule.description or rule.name}: {len(result.episodes)} episodes, "
        f"{len(result.notifications)} notifications.",
        panels=tuple(panel.panel for panel in panels),
    )
    at = dt.datetime.now(dt.UTC)
    return dashboard_page(
        DashboardAnswer(pipeline=pipeline, dashboard=dashboard, span=Span(start, end), at=at, panels=tuple(panels))
    )


def _panel(
    title: str, chart: str, y: str, by: str | None, rows: list[tuple[object, ...]], description: str
) -> PanelAnswer:
    spec = {"title": title, "chart": chart, "sql": "backtest", "x": "minute", "y": y, "by": by, "wide": True}
    panel = PanelSpec.model_validate(spec | {"description": description})
    columns = ("minute", *([by] if by else []), y)
    return PanelAnswer(panel=panel, columns=columns, rows=tuple(rows))


def _charted_label_sets(result: Backtest) -> set[Labels]:
    fired: dict[Labels, int] = defaultdict(int)
    for episode in result.episodes:
        fired[episode.labels] += (result.last if episode.ended is None else episode.ended) - episode.began
    extreme = extreme_values(result.points, result.rule)
    return set(sorted(extreme, key=lambda labels: (fired[labels], extreme[labels]), reverse=True)[:_MAX_LINES])


def _lines(result: Backtest, label_sets: set[Labels], value_name: str) -> list[tuple[object, ...]]:
    sign = result.rule.fire.sign
    width = max(1, (result.last - result.first) // _MAX_POINTS)
    extremes: dict[tuple[Labels, int], tuple[ChartPoint, float]] = {}
    for point in result.points:
        value = point.value if value_name == "value" else point.baseline
        if point.labels not in label_sets or value is None:
            continue
        key = (point.labels, point.minute // width)
        if key not in extremes or sign * value > sign * extremes[key][1]:
            extremes[key] = point, value
    return [
        (minute_start(point.minute), labels_text(result.rule, point.labels), value)
        for point, value in sorted(extremes.values(), key=lambda item: item[0].minute)
    ]


def _firing(result: Backtest) -> list[tuple[object, ...]]:
    changes: dict[int, int] = defaultdict(int)
    for episode in result.episodes:
        changes[episode.fired] += 1
        changes[result.last + 1 if episode.ended is None else episode.ended] -= 1
    rows: list[tuple[object, ...]] = [(minute_start(result.first), 0)]
    number = 0
    for minute in sorted(changes):
        rows.append((minute_start(minute), number))
        number += changes[minute]
        rows.append((minute_start(minute), number))
    return [*rows, (minute_start(result.last), number)]
