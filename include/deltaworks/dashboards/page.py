"""Renders a dashboard as one self-contained HTML page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from deltaworks.charts.compact import area_sparkline
from deltaworks.charts.drawing import NO_MARKS, ChartOptions, Marks, Span, escape, marks_list
from deltaworks.charts.page import html_page, html_table, section, with_legend
from deltaworks.charts.plots import MAX_ROWS, area_chart, column_chart, histogram, line_chart, row_chart
from deltaworks.charts.scales import SeriesSet, build_series, format_age, format_full, format_time, to_number
from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
from deltaworks.specs.dashboards import Chart

#: Maximum rows of a table panel.
_MAX_TABLE_ROWS = 100


#: Settings of the script that renews the panels: it runs no code of a page and talks to its own server only.
_SCRIPT_SETTINGS: Final = (
    '{"allowEval":false,"includeIndicatorStyles":false,"allowScriptTags":false,"historyEnabled":false,'
    '"selfRequestsOnly":true}'
)


def dashboard_page(
    answer: DashboardAnswer,
    *,
    refresh_seconds: int | None = None,
    is_served: bool = False,
    script: str = "",
    segments_script: str = "",
) -> str:
    """Renders the page.

    Args:
        refresh_seconds: interval after which the panels are renewed; None for a file.
        is_served: the console serves the page, so it has links and a form for the time span and filters.
        script: address of htmx, which renews the panels in place; without it, and in browsers without scripts, the
            page reloads.
        segments_script: address of the script that saves filters by name.
    """
    dashboard = answer.dashboard
    title = dashboard.title or f"{answer.pipeline} {dashboard.name}"
    text = f"<p>{escape(dashboard.description)}</p>" if dashboard.description else ""
    newest = max((panel.newest_at for panel in answer.panels if panel.newest_at is not None), default=None)
    failed = sum(bool(panel.problem) for panel in answer.panels)
    header_items = [
        f"<div><dt>from</dt><dd>{_minute_text(answer.span.since)}</dd></div>",
        f"<div><dt>to</dt><dd>{_minute_text(answer.span.until)} UTC</dd></div>",
        f"<div><dt>drawn</dt><dd>{format_time(answer.at.replace(microsecond=0))} UTC</dd></div>",
        f"<div><dt>newest data</dt><dd>{'none yet' if newest is None else _time_and_age(newest, answer.at)}</dd></div>",
        f'<div><dt>panels that failed</dt><dd class="failed">{failed}</dd></div>' if failed else "",
    ]
    panels = "".join(_panel(panel, answer) for panel in answer.panels)
    navigation = _navigation(answer, newest, is_current=refresh_seconds is not None) if is_served else ""
    head, polling = _renewal(refresh_seconds, script)
    if segments_script and dashboard.filters:
        head += f'<script src="{escape(segments_script)}" defer></script>'
    body = (
        f"{navigation}<div{polling}><header><h1>{escape(title)}</h1>{text}{_filter_note(answer)}"
        f"<dl>{''.join(header_items)}</dl></header><main>{panels}{marks_list(answer.marks)}</main></div>"
    )
    return html_page(title, body, head=head)


def _renewal(refresh_seconds: int | None, script: str) -> tuple[str, str]:
    """Returns the HTML of the page's head, and the attributes of its renewed part."""
    if not refresh_seconds:
        return "", ""
    reload_tag = f'<meta http-equiv="refresh" content="{refresh_seconds}">'
    if not script:
        return reload_tag, ""
    head = (
        f"<meta name=\"htmx-config\" content='{_SCRIPT_SETTINGS}'>"
        f'<script src="{escape(script)}" defer></script><noscript>{reload_tag}</noscript>'
    )
    # Without an address, htmx requests the page's own.
    return (
        head,
        f' id="renewed" hx-get="" hx-trigger="every {refresh_seconds}s" hx-select="#renewed" hx-swap="outerHTML"',
    )


def _filter_note(answer: DashboardAnswer) -> str:
    """Renders the values that the page is filtered by."""
    chosen = ", ".join(f"{name} {value}" for name, value in answer.filters.items())
    rules = any(panel.panel.rule is not None for panel in answer.panels)
    unfiltered = "; panels of rules show all" if chosen and rules else ""
    problem = (
        f'<p class="problem">There is nothing to choose from. {escape(answer.problem)}</p>' if answer.problem else ""
    )
    return (f"<p>Filtered by {escape(chosen)}{unfiltered}.</p>" if chosen else "") + problem


def _navigation(answer: DashboardAnswer, newest: dt.datetime | None, *, is_current: bool) -> str:
    """Renders links, and the form for filters and the time span, whose values are the page's address.

    Args:
        is_current: the page shows the time until now, so its address has no times.
    """
    span = answer.span
    links = '<a href="../../dashboards">all dashboards</a> <a href="?">now</a>'
    for segment in answer.dashboard.segments:
        current = ' aria-current="page"' if dict(segment.filters) == dict(answer.filters) else ""
        links += f' <a class="segment" href="?{escape(urlencode(segment.filters))}"{current}>{escape(segment.name)}</a>'
    if newest is not None and not span.since <= newest <= span.until:
        since = newest - (span.until - span.since)
        links += (
            f' <a href="?from={_query_time(since)}&amp;to={_query_time(newest + dt.timedelta(minutes=1))}">'
            "show the newest data</a>"
        )
    fields = "".join(_filter_field(name, answer) for name in answer.dashboard.filters)
    fields += "".join(
        f'<label>{name} <input type="datetime-local" name="{name}" value="{"" if is_current else _query_time(at)}">'
        "</label> "
        for name, at in (("from", span.since), ("to", span.until))
    )
    return f'<nav aria-label="Dashboard">{links} <form>{fields}UTC <button>show</button></form></nav>'


def _filter_field(name: str, answer: DashboardAnswer) -> str:
    """Renders the choices of a filter; the page's own value is one of them, even if no row has it."""
    chosen = answer.filters.get(name, "")
    values = answer.choices.get(name, ())
    options = "".join(
        f"<option{' selected' if value == chosen else ''}>{escape(value)}</option>"
        for value in ((chosen, *values) if chosen and chosen not in values else values)
    )
    return (
        f'<label>{escape(name)} <select name="{escape(name)}"><option value="">all</option>{options}</select></label> '
    )


def _query_time(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%dT%H:%M}"


def _panel(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    size = "wide" if panel.wide else panel.chart if panel.chart == "number" else "half"
    more = f'<span class="cut">the first {len(answer.rows):,} rows only</span>' if answer.is_truncated else ""
    return section(
        panel.title,
        _body(answer, dashboard),
        size=size,
        text=panel.description,
        footer=f"{_age_footer(answer, dashboard.at)}{more}",
    )


def _body(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    problem = answer.problem
    if answer.missing_tables:
        tables = ", ".join(answer.missing_tables)
        return f'<p class="empty">No data: table {escape(tables)} does not exist yet. {escape(answer.next_step)}</p>'
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
    data = _series(answer, additive=False)
    last = data.positions[-1]
    points = [(x, value) for x, value in sorted(data.series[0].values.items()) if value is not None]
    shown = _large_number(data.series[0].values[last], answer)
    return f'<p class="number">{shown}<small>{escape(data.label(last))}</small></p>{area_sparkline(points)}'


def _large_number(value: float | None, answer: PanelAnswer) -> str:
    return "-" if value is None else escape(format_full(value, answer.panel.unit))


def _table_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    rest = len(answer.rows) - _MAX_TABLE_ROWS
    note = f'<p class="note">and {rest:,} more rows</p>' if rest > 0 else ""
    return html_table(answer.columns, answer.rows[:_MAX_TABLE_ROWS]) + note


def _histogram_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    panel = answer.panel
    x = panel.x or ""
    counts = answer.column(panel.y[0]) if panel.y else None
    return f'<div class="chart">{histogram(_options(answer), answer.column(x), counts, name=x)}</div>'


def _line_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = _series(answer, additive=False)
    span = _axis_span(data, dashboard.span)
    marks = answer.marks if answer.marks is not None and data.kind == "time" else _chart_marks(data, dashboard)
    return with_legend(line_chart(_options(answer), data, span, marks, band=_band(answer)), data)


def _band(answer: PanelAnswer) -> tuple[SeriesSet, SeriesSet] | None:
    panel = answer.panel
    if not panel.band:
        return None
    low, high = (_series(answer, {panel.y[0]: answer.column(name)}, additive=False) for name in panel.band)
    return low, high


def _area_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = _series(answer, additive=True)
    span, marks = _axis_span(data, dashboard.span), _chart_marks(data, dashboard)
    return with_legend(area_chart(_options(answer), data, span, marks), data)


def _bar_chart(answer: PanelAnswer, dashboard: DashboardAnswer) -> str:
    data = _series(answer, additive=True)
    if data.kind == "text":
        rest = len(data.positions) - MAX_ROWS
        note = f'<p class="note">and {rest:,} more</p>' if rest > 0 else ""
        return with_legend(row_chart(_options(answer), data), data) + note
    span, marks = _axis_span(data, dashboard.span), _chart_marks(data, dashboard)
    return with_legend(column_chart(_options(answer), data, span, marks), data)


def _options(answer: PanelAnswer) -> ChartOptions:
    return ChartOptions(title=answer.panel.title, unit=answer.panel.unit, wide=answer.panel.wide)


def _series(answer: PanelAnswer, columns: Mapping[str, Sequence[object]] | None = None, *, additive: bool) -> SeriesSet:
    """Returns the series of a panel: of its values, or of other columns."""
    panel = answer.panel
    if columns is None:
        columns = {name: answer.column(name) for name in panel.y}
    by = None if panel.by is None else answer.column(panel.by)
    return build_series(answer.column(panel.x or ""), columns, by=by, additive=additive)


def _axis_span(data: SeriesSet, span: Span) -> tuple[float, float]:
    """Returns the range of the x axis.

    For times it is the requested time span, so that missing data are visible; otherwise the range of the data.
    """
    if data.kind != "time":
        return data.span
    return min(span.since.timestamp(), data.positions[0]), max(span.until.timestamp(), data.positions[-1])


def _chart_marks(data: SeriesSet, dashboard: DashboardAnswer) -> Marks:
    return dashboard.marks if data.kind == "time" else NO_MARKS


_CHARTS: Final[dict[Chart, Callable[[PanelAnswer, DashboardAnswer], str]]] = {
    "line": _line_chart,
    "area": _area_chart,
    "bar": _bar_chart,
    "number": _number_chart,
    "histogram": _histogram_chart,
    "table": _table_chart,
}
