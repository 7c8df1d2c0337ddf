"""A dashboard as one HTML page: readable without a server or internet access, in a light and a dark theme.

It holds no script and loads nothing, so it may be kept as a file, sent by mail, or served under a policy that forbids
both. What the lake says stands in it for itself, whatever it looks like.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from numbers import Number
from typing import Final

from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
from deltaworks.dashboards.bars import MOST_ROWS, column_chart, histogram, row_chart
from deltaworks.dashboards.drawing import escaped
from deltaworks.dashboards.lines import area_chart, line_chart, place_label, sparkline
from deltaworks.dashboards.marks import NO_MARKS, Marks, marks_list
from deltaworks.dashboards.series import OTHER, SeriesSet, series_of
from deltaworks.dashboards.spans import Span
from deltaworks.dashboards.style import STYLE
from deltaworks.dashboards.values import age, cell, full, moment, number_of
from deltaworks.specs.dashboards import Chart

#: Rows of a panel's table; all of them are in what `deltaworks sql` says.
_MOST_TABLE_ROWS = 100


def dashboard_page(answer: DashboardAnswer, *, refresh_seconds: int | None = None, links: str = "") -> str:
    """The page.

    Args:
        refresh_seconds: after which a browser asks for it again; never of a file, which stays as it is.
        links: markup above the heading.
    """
    dashboard = answer.dashboard
    title = dashboard.title or f"{answer.pipeline} {dashboard.name}"
    again = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    text = f"<p>{escaped(dashboard.description)}</p>" if dashboard.description else ""
    newest = max((panel.newest_at for panel in answer.panels if panel.newest_at is not None), default=None)
    failed = sum(bool(panel.problem) for panel in answer.panels)
    facts = [
        f"<dt>from</dt><dd>{_minute(answer.span.since)}</dd><dt>to</dt><dd>{_minute(answer.span.until)} UTC</dd>",
        f"<dt>drawn</dt><dd>{moment(answer.at.replace(microsecond=0))} UTC</dd>",
        f"<dt>newest data</dt><dd>{'none yet' if newest is None else _ago(newest, answer.at)}</dd>",
        f'<dt>panels that failed</dt><dd class="failed">{failed}</dd>' if failed else "",
    ]
    panels = "".join(_panel(panel, answer) for panel in answer.panels)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{again}'
        f"<title>{escaped(title)}</title><style>{STYLE}</style>{links}"
        f"<header><h1>{escaped(title)}</h1>{text}<dl>{''.join(facts)}</dl></header>"
        f"<main>{panels}{marks_list(answer.marks)}</main></html>\n"
    )


def _panel(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    size = "wide" if panel.wide else panel.chart if panel.chart == "number" else "half"
    text = f'<p class="text">{escaped(panel.description)}</p>' if panel.description else ""
    more = f'<span class="cut">the first {len(answer.rows):,} rows only</span>' if answer.more_rows else ""
    return (
        f'<section class="{size}"><h2>{escaped(panel.title)}</h2>{text}'
        f'<div class="body">{_body(answer, dashboard)}</div>'
        f"<footer>{_age(answer, dashboard.at)}{more}</footer></section>"
    )


def _body(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    problem = answer.problem
    if answer.absent:
        tables = ", ".join(answer.absent)
        return f'<p class="empty">No data: {escaped(tables)} is not there yet.</p>'
    if not problem and not answer.rows:
        return '<p class="empty">No rows between these times.</p>'
    if not problem:
        try:
            return _CHARTS[answer.panel.chart](answer, dashboard)
        # What an answer is of, its panel cannot show.
        except (TypeError, ValueError, OverflowError) as error:
            problem = str(error)
    return f'<p class="problem"><strong>This panel failed.</strong> {escaped(problem)}</p>'


def _age(answer: PanelAnswer, now: dt.datetime) -> str:
    """How old the data of a panel are; of every table it reads, where a pointer rests on it."""
    if not answer.ages:
        return "<span>age of the data unknown</span>" if answer.problem else "<span>no data yet</span>"
    details = "; ".join(
        f"{item.table}: data to {'?' if item.newest_row_at is None else moment(item.newest_row_at)}, "
        f"written {'?' if item.last_change_at is None else moment(item.last_change_at)} UTC"
        for item in answer.ages
    )
    newest = answer.newest_at
    written = max((item.last_change_at for item in answer.ages if item.last_change_at is not None), default=None)
    said = "data of unknown age" if newest is None else f"data to {_ago(newest, now)}"
    if written is not None:
        said += f", written {age((now - written).total_seconds())} ago"
    return f'<span class="age" title="{escaped(details)}">{escaped(said)}</span>'


def _ago(at: dt.datetime, now: dt.datetime) -> str:
    return f"{_minute(at)}, {age((now - at).total_seconds())} old"


def _minute(at: dt.datetime) -> str:
    return moment(at.replace(second=0, microsecond=0))


def _number(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    values = [number_of(value) for value in answer.column(panel.y[0])]
    if panel.x is None:
        if len(values) > 1:
            raise ValueError(
                f"the answer of {panel.sql} has {len(values)} rows and not one; declare x, or write LIMIT 1"
            )
        return f'<p class="number">{_large(values[0], answer)}</p>'
    data = series_of(answer, additive=False)
    last = data.xs[-1]
    points = [(x, value) for x, value in sorted(data.series[0].values.items()) if value is not None]
    shown = _large(data.series[0].values[last], answer)
    return f'<p class="number">{shown}<small>{escaped(place_label(data, last))}</small></p>{sparkline(points)}'


def _large(value: float | None, answer: PanelAnswer) -> str:
    return "-" if value is None else escaped(full(value, answer.panel.unit))


def _table(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    kinds = [
        ' class="n"' if all(isinstance(row[place], Number | None) for row in answer.rows) else ""
        for place in range(len(answer.columns))
    ]
    head = "".join(f"<th{kind}>{escaped(name)}</th>" for name, kind in zip(answer.columns, kinds, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escaped(cell(value))}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in answer.rows[:_MOST_TABLE_ROWS]
    )
    rest = len(answer.rows) - _MOST_TABLE_ROWS
    note = f'<p class="note">and {rest:,} more rows</p>' if rest > 0 else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _histogram(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    return f'<div class="chart">{histogram(answer)}</div>'


def _line(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = series_of(answer, additive=False)
    return _framed(line_chart(answer.panel, data, _span(data, dashboard.span), _marks(data, dashboard)), data, answer)


def _area(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = series_of(answer, additive=True)
    return _framed(area_chart(answer.panel, data, _span(data, dashboard.span), _marks(data, dashboard)), data, answer)


def _bar(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = series_of(answer, additive=True)
    if data.kind == "text":
        rest = len(data.xs) - MOST_ROWS
        note = f'<p class="note">and {rest:,} more</p>' if rest > 0 else ""
        return _framed(row_chart(answer.panel, data), data, answer) + note
    return _framed(column_chart(answer.panel, data, _span(data, dashboard.span), _marks(data, dashboard)), data, answer)


def _span(data: SeriesSet, span: Span) -> tuple[float, float]:
    """The span of the axis: all the time that was asked for, so that missing data are seen, else that of the data."""
    if data.kind != "time":
        return data.xs[0], data.xs[-1]
    return min(span.since.timestamp(), data.xs[0]), max(span.until.timestamp(), data.xs[-1])


def _marks(data: SeriesSet, dashboard: DashboardAnswer) -> Marks:
    return dashboard.marks if data.kind == "time" else NO_MARKS


def _framed(chart: str, data: SeriesSet, answer: PanelAnswer) -> str:
    """A chart with the names of its series, where there are several or they are of a column."""
    if len(data.series) == 1 and answer.panel.by is None:
        return f'<div class="chart">{chart}</div>'
    names = "".join(
        f'<li><i class="s{number}"></i>{escaped(item.name[:60])}</li>' for number, item in enumerate(data.series)
    )
    summed = any(item.name == OTHER for item in data.series)
    if data.left_over:
        names += (
            f'<li class="note">{OTHER}: {data.left_over} more</li>'
            if summed
            else (f'<li class="note">{data.left_over} smaller ones are not shown</li>')
        )
    return f'<div class="chart">{chart}</div><ul class="legend">{names}</ul>'


_CHARTS: Final[dict[Chart, Callable[[PanelAnswer, DashboardAnswer], str]]] = {
    "line": _line,
    "area": _area,
    "bar": _bar,
    "number": _number,
    "histogram": _histogram,
    "table": _table,
}
