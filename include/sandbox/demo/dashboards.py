"""Renders the dashboards of the demo's pipelines as HTML pages, over the time range of the demo's events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from deltaworks.charts.drawing import Span
from deltaworks.control import paths
from deltaworks.dashboards.page import dashboard_page
from deltaworks.page_reads.dashboards import load_dashboard
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

#: Added to the end of the time range, to include the latest event.
_SPAN_MARGIN = dt.timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """A rendered dashboard. `failed_panels` are the titles of panels whose query failed, each with the reason."""

    pipeline: str
    name: str
    panels: int
    panels_with_rows: int
    failed_panels: tuple[str, ...]
    path: Path

    @property
    def title(self) -> str:
        """The pipeline's and the dashboard's name."""
        return f"dashboard {self.pipeline} {self.name}"


def write_dashboards(
    catalog: Catalog, pipelines: Sequence[str], connection: duckdb.DuckDBPyConnection, folder: Path
) -> list[DashboardPage]:
    """Renders every dashboard of these pipelines below `folder`, and removes those of an earlier demo."""
    pages = []
    for pipeline in pipelines:
        declared = catalog.pipeline(pipeline).dashboards
        span = _event_span(catalog, pipeline, connection) if declared else None
        if span is None:
            continue
        for dashboard in declared:
            answer = load_dashboard(catalog, pipeline, dashboard, span)
            failed = tuple(
                f"{panel.panel.title}: {panel.problem or ' and '.join(panel.missing_tables) + ' not there'}"
                for panel in answer.panels
                if panel.problem or panel.missing_tables
            )
            path = folder / f"{pipeline}-{dashboard.name}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dashboard_page(answer), encoding="utf-8")
            with_rows = sum(bool(panel.rows) for panel in answer.panels)
            pages.append(DashboardPage(pipeline, dashboard.name, len(answer.panels), with_rows, failed, path))
    return pages


def _event_span(catalog: Catalog, pipeline: str, connection: duckdb.DuckDBPyConnection) -> Span | None:
    """Returns the time range of the events in all tables; None if nothing has landed."""
    bounds = [
        connection.execute(f"SELECT min(event_time), max(event_time) FROM {pipeline}.{table}").fetchone()
        for table in _event_tables(catalog, pipeline)
    ]
    landed = [bound for bound in bounds if bound is not None and bound[0] is not None]
    if not landed:
        return None
    first, last = min(bound[0] for bound in landed), max(bound[1] for bound in landed)
    return Span(first.astimezone(dt.UTC), last.astimezone(dt.UTC) + _SPAN_MARGIN)


def _event_tables(catalog: Catalog, pipeline: str) -> Iterator[str]:
    lake = Lake(catalog.environment.lake)
    for table in catalog.pipeline(pipeline).event_tables:
        if lake.open(paths.table(pipeline, table.name)) is not None:
            yield table.name
