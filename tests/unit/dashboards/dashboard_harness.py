"""A pipeline with a minute table and dashboards, in a local lake written by delta-rs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from deltaworks.charts.drawing import Span
from deltaworks.control import paths
from deltaworks.dashboards.answers import DashboardAnswer, QueryLimits, answer_dashboard
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import ORDERS, SHOP, project

START = dt.datetime(2026, 3, 1, 10, 0, tzinfo=dt.UTC)
MINUTES = 30
BOUNDS = QueryLimits()
SPAN = Span(START, START + dt.timedelta(minutes=MINUTES))
GOLD = """\
gold:
  tables: [{name: errors_minute, sql: gold/errors_minute.sql, reads: [orders], partition_by: event_date}]
"""
GOLD_SQL = """\
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, event_name AS class, count(*) AS errors
FROM orders GROUP BY event_date, minute, class
"""
ERRORS_SQL = """\
SELECT minute, class, errors
FROM errors_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
ORDER BY minute
"""
ERRORS = "{title: Errors by type, chart: area, x: minute, y: errors, by: class, sql: panels/errors.sql}"


def dashboards(*panels: str, more: str = "") -> str:
    """Returns the declaration of the dashboard `noc`."""
    listed = "".join(f"      - {panel}\n" for panel in panels)
    return f"dashboards:\n  - name: noc\n    refresh_seconds: 30\n{more}    panels:\n{listed}"


def shop(folder: Path, *panels: str, more: str = "", views: str = "", **sql: str) -> Catalog:
    """Returns a project whose pipeline `shop` has these panels; `more` are keys of the dashboard, `sql` the panels'
    files.
    """
    files = {"gold/errors_minute.sql": GOLD_SQL, "panels/errors.sql": ERRORS_SQL}
    files |= {f"panels/{name}.sql": text for name, text in sql.items()}
    declared = dashboards(*(panels or (ERRORS,)), more=more)
    return project(folder, sql=files, shop=SHOP + ORDERS + GOLD + views + declared)


def put(catalog: Catalog, table: str, rows: list[dict[str, Any]], pipeline: str = "shop", **options: Any) -> str:
    """Appends rows to a table, creating it; returns its key."""
    key = paths.table(pipeline, table)
    storage = catalog.environment.lake
    write_deltalake(storage.uri(key), pa.Table.from_pylist(rows), mode="append", **options)
    return key


def errors(classes: Mapping[str, int] | None = None, *, minutes: int = MINUTES) -> list[dict[str, Any]]:
    """Returns rows of `errors_minute`; each minute has one more error per class than the one before."""
    return [
        {
            "event_date": START.date(),
            "minute": START + dt.timedelta(minutes=minute),
            "class": name,
            "errors": count + minute,
        }
        for minute in range(minutes)
        for name, count in (classes or {"network": 2, "drm": 1}).items()
    ]


def answered(catalog: Catalog, *, span: Span = SPAN, bounds: QueryLimits = BOUNDS) -> DashboardAnswer:
    """Runs the dashboard `noc`."""
    (dashboard,) = catalog.pipelines["shop"].dashboards
    return answer_dashboard(catalog, "shop", dashboard, span, limits=bounds)


def lake_of(catalog: Catalog) -> Lake:
    """Returns the lake of a project."""
    return Lake(catalog.environment.lake)
