"""`deltaworks dashboard`: a declared dashboard as an HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, OutputPart, listing_command
from deltaworks.control.listing import Listing, count_cell, timestamp_cell
from deltaworks.dashboards.spans import parse_span
from deltaworks.specs.catalog import find_by_name

if TYPE_CHECKING:
    from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
    from deltaworks.specs.dashboards import DashboardSpec
    from deltaworks.specs.pipeline import PipelineSpec


@listing_command
def dashboard(
    pipeline: PipelineArgument,
    name: str = typer.Argument("", help="The dashboard."),
    html: Path | None = typer.Option(None, "--html", help="HTML file to write."),
    since: str = typer.Option("", "--from", help="Start, as a date or time in UTC; by default the declared range."),
    until: str = typer.Option("", "--to", help="Last date (included), or end as a time in UTC; by default now."),
    filters: list[str] = typer.Option([], "--filter", help="A declared filter and its value, as isp=Example."),
) -> CommandOutput | Listing:
    """Query a dashboard's panels, and optionally write an HTML page; without a name, list the dashboards."""
    project = catalog()
    spec = project.pipeline(pipeline)
    if not name:
        return _dashboard_listing(spec)
    dashboard_spec = find_by_name(name, {item.name: item for item in spec.dashboards}, "dashboard")
    span = parse_span(dashboard_spec, since=since, until=until)
    # Imported here: it loads DuckDB and Arrow.
    from deltaworks.page_reads.dashboards import load_dashboard

    answer = load_dashboard(project, pipeline, dashboard_spec, span, filters=_parse_filters(dashboard_spec, filters))
    parts: list[OutputPart] = [_panel_listing(answer)]
    if html is not None:
        from deltaworks.dashboards.page import dashboard_page

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(dashboard_page(answer), encoding="utf-8")
        parts.append(f"Written to {html}.")
    return CommandOutput(parts, exit_code=int(any(panel.problem for panel in answer.panels)))


def _parse_filters(dashboard_spec: DashboardSpec, texts: Sequence[str]) -> dict[str, str]:
    """Returns the values by filter.

    Raises:
        ConfigError: FILTER_UNKNOWN, the dashboard declares no such filter.
    """
    filters = {}
    for text in texts:
        name, _, value = text.partition("=")
        find_by_name(name, {item: item for item in dashboard_spec.filters}, "filter")
        filters[name] = value
    return filters


def _dashboard_listing(spec: PipelineSpec) -> Listing:
    listing = Listing(("dashboard", "panels", "hours", "refresh seconds", "title"))
    for item in spec.dashboards:
        listing.add(item.name, count_cell(len(item.panels)), f"{item.hours:g}", str(item.refresh_seconds), item.title)
    return listing


def _panel_listing(answer: DashboardAnswer) -> Listing:
    listing = Listing(("panel", "chart", "rows", "data to", "seconds", "state"))
    for item in answer.panels:
        listing.add(
            item.panel.title,
            item.panel.chart,
            count_cell(len(item.rows)),
            timestamp_cell(item.newest_at, default="?"),
            f"{item.seconds:.2f}",
            _panel_state(item),
        )
    return listing


def _panel_state(answer: PanelAnswer) -> str:
    if answer.problem:
        return f"failed: {answer.problem}"
    if answer.missing_tables:
        return f"{', '.join(answer.missing_tables)} does not exist yet: {answer.next_step}"
    return "truncated" if answer.is_truncated else "ok"
