"""Generates the pages of metrics in the docs: the Grafana dashboard, and the table of all metrics.

The dashboard's data source is a variable, so that it can be imported unchanged. Each row covers one subject, and each
panel answers one question of an operator. `python -m deltaworks.metrics.grafana docs` writes both files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deltaworks.metrics.samples import FAMILIES, markdown_table

#: UID of the dashboard, for links and for imports that replace it.
UID: Final = "deltaworks"
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard. Its unit is the unit of the first metric in its expression."""

    title: str
    expression: str
    legend: str
    family: str
    kind: str = "timeseries"
    unit: str = ""


_PIPELINES = '{pipeline=~"$pipeline"}'


def _pipeline_panel(title: str, family: str, *, rate: bool = False) -> Panel:
    series = f"{family}{_PIPELINES}"
    if rate:
        return Panel(title, f"rate({series}[5m])", "{{pipeline}}", family, unit="cps")
    return Panel(title, series, "{{pipeline}}", family)


_ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Needs attention",
        (
            Panel("Unhealthy streams", "sum(deltaworks_stream_unhealthy) or vector(0)", "", "", "stat", "short"),
            Panel("Open alerts", "sum by (severity) (deltaworks_alert_open)", "{{severity}}", "", "stat", "short"),
            Panel("Last health check", "deltaworks_health_age_seconds", "ago", "deltaworks_health_age_seconds", "stat"),
            Panel("Causes", f"deltaworks_stream_unhealthy{_PIPELINES}", "{{pipeline}}: {{cause}}", "", unit="short"),
            Panel("Alerts by cause", "deltaworks_alert_open", "{{cause}}", "", unit="short"),
            Panel("Storage up", "deltaworks_storage_up", "up", "", "stat", "short"),
        ),
    ),
    (
        "Streams",
        (
            Panel("State", f"deltaworks_stream_state{_PIPELINES} == 1", "{{pipeline}}: {{state}}", "", "stat", "short"),
            _pipeline_panel("Lag", "deltaworks_stream_lag_seconds"),
            _pipeline_panel("Time until source retention", "deltaworks_stream_time_left_seconds"),
            Panel(
                "Freshness of bronze",
                f"deltaworks_stream_freshness_seconds{_PIPELINES}",
                "{{pipeline}} {{quantile}}",
                "deltaworks_stream_freshness_seconds",
            ),
            _pipeline_panel("Rows per second", "deltaworks_stream_rows_total", rate=True),
            _pipeline_panel("Quarantined per second", "deltaworks_stream_quarantined_total", rate=True),
            _pipeline_panel("Quarantined share", "deltaworks_stream_quarantined_share"),
            _pipeline_panel("Recent quarantined share", "deltaworks_stream_recent_quarantined_share"),
            _pipeline_panel("Waiting records", "deltaworks_stream_backlog_records"),
            _pipeline_panel("Waiting files", "deltaworks_stream_backlog_files"),
            _pipeline_panel("Waiting bytes", "deltaworks_stream_backlog_bytes"),
            _pipeline_panel("Heartbeat age", "deltaworks_stream_heartbeat_age_seconds"),
            _pipeline_panel("Held tables", "deltaworks_stream_held_tables"),
            _pipeline_panel("Lost objects", "deltaworks_stream_lost_files"),
        ),
    ),
    (
        "Relays",
        (
            Panel("State", "deltaworks_relay_state == 1", "{{relay}}: {{state}}", "", "stat", "short"),
            Panel(
                "Events per second",
                "rate(deltaworks_relay_events_total[5m])",
                "{{relay}}",
                "deltaworks_relay_events_total",
                unit="cps",
            ),
            Panel("Waiting messages", "deltaworks_relay_backlog_messages", "{{relay}}", "", unit="short"),
            Panel("Dead letters", "deltaworks_relay_dead_letters", "{{relay}}", "", unit="short"),
            Panel(
                "Heartbeat age",
                "deltaworks_relay_heartbeat_age_seconds",
                "{{relay}}",
                "deltaworks_relay_heartbeat_age_seconds",
            ),
        ),
    ),
    (
        "Collectors",
        (
            Panel("State", "deltaworks_collector_state == 1", "{{collector}}: {{state}}", "", "stat", "short"),
            Panel(
                "Delivered per second",
                "rate(deltaworks_collector_delivered_total[5m])",
                "{{collector}} {{source}}",
                "deltaworks_collector_delivered_total",
                unit="cps",
            ),
            Panel(
                "Spool",
                "deltaworks_collector_spool_bytes / deltaworks_collector_spool_max_bytes",
                "{{collector}}",
                "",
                unit="percentunit",
            ),
            Panel(
                "Oldest waiting event",
                "deltaworks_collector_oldest_seconds",
                "{{collector}}",
                "deltaworks_collector_oldest_seconds",
            ),
            Panel("Dead letters", "deltaworks_collector_dead_letters", "{{collector}} {{source}}", "", unit="short"),
        ),
    ),
    (
        "Gold",
        (
            Panel(
                "Age",
                f"deltaworks_gold_age_seconds{_PIPELINES}",
                "{{pipeline}}.{{table}}",
                "deltaworks_gold_age_seconds",
            ),
            Panel(
                "Waiting rows relative to declared maximum",
                f"deltaworks_gold_waiting_seconds{_PIPELINES} / deltaworks_gold_max_age_seconds{_PIPELINES}",
                "{{pipeline}}.{{table}}",
                "",
                unit="percentunit",
            ),
            Panel(
                "Late rows of frozen dates",
                f"deltaworks_gold_late_rows{_PIPELINES}",
                "{{pipeline}}.{{table}}",
                "",
                unit="short",
            ),
            Panel("Release", "deltaworks_build_info", "{{version}}", "", "stat", "short"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Returns the dashboard in Grafana's import format."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _ROWS:
        panels.append(_row(title, number=len(panels) + 1, y=y))
        y += 1
        for position, panel in enumerate(row):
            x = position * _WIDTH % _COLUMNS
            panels.append(_panel(panel, number=len(panels) + 1, x=x, y=y + position * _WIDTH // _COLUMNS * _HEIGHT))
        y += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "uid": UID,
        "title": "Deltaworks",
        "tags": ["deltaworks"],
        "timezone": "utc",
        "editable": True,
        "refresh": "30s",
        "schemaVersion": 39,
        "version": 1,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Returns all PromQL expressions of a dashboard."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def _variables() -> list[dict[str, Any]]:
    choice = {"includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"}}
    query = "label_values(deltaworks_stream_state, pipeline)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "pipeline",
            "type": "query",
            "label": "Pipeline",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": "pipelines"},
            "definition": query,
            "refresh": 2,
            **choice,
        },
    ]


def _row(title: str, *, number: int, y: int) -> dict[str, Any]:
    position = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": position, "panels": []}


def _panel(panel: Panel, *, number: int, x: int, y: int) -> dict[str, Any]:
    family = FAMILIES.get(panel.family)
    unit = panel.unit or (family.unit if family is not None else "short")
    target = {"refId": "A", "datasource": _DATASOURCE, "expr": panel.expression, "legendFormat": panel.legend}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": family.help if family is not None else "",
        "datasource": _DATASOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [target],
    }


def dashboard_json() -> str:
    """Returns the dashboard as the text of the JSON file in the docs."""
    return json.dumps(dashboard(), indent=1) + "\n"


_BEGIN: Final = "<!-- generated: metrics -->\n"
_END: Final = "\n<!-- end of metrics -->"


def write_pages(docs: Path) -> None:
    """Writes the table of metrics and the dashboard file. Idempotent."""
    page = docs / "reference/metrics.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}{markdown_table()}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    (docs / "reference" / "grafana" / "deltaworks.json").write_text(dashboard_json(), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
