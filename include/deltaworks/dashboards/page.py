"""Renders a dashboard as one self-contained HTML page, in a light and a dark theme.

The page has no scripts and loads nothing, so it can be saved, mailed, or served under a strict content security policy.
All data are escaped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from numbers import Number
from typing import Final

from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
from deltaworks.dashboards.bars import MAX_ROWS, column_chart, histogram, row_chart
from deltaworks.dashboards.drawing import escape
from deltaworks.dashboards.lines import area_chart, line_chart, position_label, sparkline
from deltaworks.dashboards.marks import NO_MARKS, Marks, marks_list
from deltaworks.dashboards.series import OTHER, SeriesSet, build_series
from deltaworks.dashboards.spans import Span
from deltaworks.dashboards.style import STYLE
from deltaworks.dashboards.values import format_age, format_cell, format_full, format_time, to_number
from deltaworks.specs.dashboards import Chart

#: Maximum rows of a table panel.
_MAX_TABLE_ROWS = 100


def dashboard_page(answer: DashboardAnswer, *, refresh_seconds: int | None = None, links: str = "") -> str:
    """Renders the page.

    Args:
        refresh_seconds: reload interval; None for a file.
        links: HTML above the heading.
    """
    dashboard = answer.dashboard
    title = dashboard.title or f"{answer.pipeline} {dashboard.name}"
    refresh_tag = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    text = f"<p>{escape(dashboard.description)}</p>" if dashboard.description else ""
    newest = max((panel.newest_at for panel in answer.panels if panel.newest_at is not None), default=None)
    failed = sum(bool(panel.problem) for panel in answer.panels)
    header_items = [
        f"<dt>from</dt><dd>{_minute_text(answer.span.since)}</dd>"
        f"<dt>to</dt><dd>{_minute_text(answer.span.until)} UTC</dd>",
        f"<dt>drawn</dt><dd>{format_time(answer.at.replace(microsecond=0))} UTC</dd>",
        f"<dt>newest data</dt><dd>{'none yet' if newest is None else _time_and_age(newest, answer.at)}</dd>",
        f'<dt>panels that failed</dt><dd class="failed">{failed}</dd>' if failed else "",
    ]
    panels = "".join(_panel(panel, answer) for panel in answer.panels)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{refresh_tag}'
        f"<title>{escape(title)}</title><style>{STYLE}</style>{links}"
        f"<header><h1>{escape(title)}</h1>{text}<dl>{''.join(header_items)}</dl></header>"
        f"<main>{panels}{marks_list(answer.marks)}</main></html>\n"
    )


def _panel(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    size = "wide" if panel.wide else panel.chart if panel.chart == "number" else "half"
    text = f'<p class="text">{escape(panel.description)}</p>' if panel.description else ""
    more = f'<span class="cut">the first {len(answer.rows):,} rows only</span>' if answer.is_truncated else ""
    return (
        f'<section class="{size}"><h2>{escape(panel.title)}</h2>{text}'
        f'<div class="body">{_body(answer, dashboard)}</div>'
        f"<footer>{_age_footer(answer, dashboard.at)}{more}</footer></section>"
    )


def _body(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    problem = answer.problem
    if answer.missing_tables:
        tables = ", ".join(answer.missing_tables)
        return f'<p class="empty">No data: table {escape(tables)} does not exist yet.</p>'
    if not problem and not answer.rows:
        return '<p class="empty">No rows in this time range.</p>'
    if not problem:
        try:
            return _CHARTS[answer.panel.chart](answer, dashboard)
        # Raised if the result does not fit the chart type.
        except (TypeError, ValueError, OverflowError) as error:
            problem = str(error)
    return f'<p class="problem"><strong>This panel failed.</strong> {escape(problem)}</p>'


def _age_footer(answer: PanelAnswer, now: dt.datetime) -> str:
    """Renders the age of a panel's data; a tooltip lists its tables."""
    if not answer.ages:
        return "<span>age of the data unknown</span>" if answer.problem else "<span>no data yet</span>"
    details = "; ".join(
        f"{item.table}: data to {'?' if item.newest_row_at is None else format_time(item.newest_row_at)}, "
        f"written {'?' if item.last_change_at is None else format_time(item.last_change_at)} UTC"
        for item in answer.ages
    )
    newest = answer.newest_at
    written = max((item.last_change_at for item in answer.ages if item.last_change_at is not None), default=None)
    text = "data of unknown age" if newest is None else f"data to {_time_and_age(newest, now)}"
    if written is not None:
        text += f", written {format_age((now - written).total_seconds())} ago"
    return f'<span class="age" title="{escape(details)}">{escape(text)}</span>'


def _time_and_age(at: dt.datetime, now: dt.datetime) -> str:
    return f"{_minute_text(at)}, {format_age((now - at).total_seconds())} old"


def _minute_text(at: dt.datetime) -> str:
    return format_time(at.replace(second=0, microsecond=0))


def _number_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    values = [to_number(value) for value in answer.column(panel.y[0])]
    if panel.x is None:
        if len(values) > 1:
            raise ValueError(f"{panel.sql} returns {len(values)} rows instead of one; declare x, or add LIMIT 1")
        return f'<p class="number">{_large_number(values[0], answer)}</p>'
    data = build_series(answer, additive=False)
    last = data.positions[-1]
    points = [(x, value) for x, value in sorted(data.series[0].values.items()) if value is not None]
    shown = _large_number(data.series[0].values[last], answer)
    return f'<p class="number">{shown}<small>{escape(position_label(data, last))}</small></p>{sparkline(points)}'


def _large_number(value: float | None, answer: PanelAnswer) -> str:
    return "-" if value is None else escape(format_full(value, answer.panel.unit))


def _table_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    kinds = [
        ' class="n"' if all(isinstance(row[position], Number | None) for row in answer.rows) else ""
        for position in range(len(answer.columns))
    ]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(answer.columns, kinds, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(format_cell(value))}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in answer.rows[:_MAX_TABLE_ROWS]
    )
    rest = len(answer.rows) - _MAX_TABLE_ROWS
    note = f'<p class="note">and {rest:,} more rows</p>' if rest > 0 else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _histogram_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    return f'<div class="chart">{histogram(answer)}</div>'


def _line_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = build_series(answer, additive=False)
    return _with_legend(
        line_chart(answer.panel, data, _axis_span(data, dashboard.span), _chart_marks(data, dashboard)), data, answer
    )


def _area_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = build_series(answer, additive=True)
    return _with_legend(
        area_chart(answer.panel, data, _axis_span(data, dashboard.span), _chart_marks(data, dashboard)), data, answer
    )


def _bar_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = build_series(answer, additive=True)
    if data.kind == "text":
        rest = len(data.positions) - MAX_ROWS
        note = f'<p class="note">and {rest:,} more</p>' if rest > 0 else ""
        return _with_legend(row_chart(answer.panel, data), data, answer) + note
    return _with_legend(
        column_chart(answer.panel, data, _axis_span(data, dashboard.span), _chart_marks(data, dashboard)), data, answer
    )


def _axis_span(data: SeriesSet, span: Span) -> tuple[float, float]:
    """Returns the range of the x axis.

    For times it is the requested time span, so that missing data are visible; otherwise the range of the data.
    """
    if data.kind != "time":
        return data.positions[0], data.positions[-1]
    return min(span.since.timestamp(), data.positions[0]), max(span.until.timestamp(), data.positions[-1])


def _chart_marks(data: SeriesSet, dashboard: DashboardAnswer) -> Marks:
    return dashboard.marks if data.kind == "time" else NO_MARKS


def _with_legend(chart: str, data: SeriesSet, answer: PanelAnswer) -> str:
    """Adds a legend if there are several series or they have names."""
    if len(data.series) == 1 and answer.panel.by is None:
        return f'<div class="chart">{chart}</div>'
    names = "".join(
        f'<li><i class="s{number}"></i>{escape(item.name[:60])}</li>' for number, item in enumerate(data.series)
    )
    summed = any(item.name == OTHER for item in data.series)
    if data.omitted_count:
        names += (
            f'<li class="note">{OTHER}: {data.omitted_count} more</li>'
            if summed
            else (f'<li class="note">{data.omitted_count} smaller series not shown</li>')
        )
    return f'<div class="chart">{chart}</div><ul class="legend">{names}</ul>'


_CHARTS: Final[dict[Chart, Callable[[PanelAnswer, DashboardAnswer], str]]] = {
    "line": _line_chart,
    "area": _area_chart,
    "bar": _bar_chart,
    "number": _number_chart,
    "histogram": _histogram_chart,
    "table": _table_chart,
}
