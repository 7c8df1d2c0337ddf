"""All metrics by name, with meaning, labels and unit. Names and labels are stable across releases.

The table in the docs, the Grafana dashboard and the endpoint are generated from this list. Labels contain no event
data, so the number of series depends only on the declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter"]
Unit = Literal["", "s", "bytes", "short", "percentunit"]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric with its labels, meaning and unit.

    Args:
        name: exported name; a counter ends with `_total`.
        labels: label names.
        help: the meaning in one sentence.
        unit: unit in Grafana's notation.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: Unit = "short"


_STREAM, _RELAY, _COLLECTOR = ("pipeline",), ("relay",), ("collector",)

_FAMILIES: Final = (
    MetricFamily("deltaworks_stream_state", "gauge", ("pipeline", "state"), "1 for the current state of a stream.", ""),
    MetricFamily(
        "deltaworks_stream_unhealthy", "gauge", ("pipeline", "cause"), "1 while a stream is unhealthy, by cause.", ""
    ),
    MetricFamily("deltaworks_stream_heartbeat_age_seconds", "gauge", _STREAM, "Time since the last heartbeat.", "s"),
    MetricFamily(
        "deltaworks_stream_lag_seconds", "gauge", _STREAM, "Waiting time of the oldest unprocessed input.", "s"
    ),
    MetricFamily(
        "deltaworks_stream_time_left_seconds",
        "gauge",
        _STREAM,
        ("Time until the source deletes the oldest unprocessed input."),
        "s",
    ),
    MetricFamily("deltaworks_stream_rows_total", "counter", _STREAM, "Rows committed by this run of the stream."),
    MetricFamily("deltaworks_stream_quarantined_total", "counter", _STREAM, "Rows quarantined by this run."),
    MetricFamily(
        "deltaworks_stream_backlog_records", "gauge", _STREAM, "Unprocessed records, if the source counts them."
    ),
    MetricFamily("deltaworks_stream_backlog_files", "gauge", _STREAM, "Unprocessed files, if the source has files."),
    MetricFamily(
        "deltaworks_stream_backlog_bytes", "gauge", _STREAM, "Unprocessed bytes, if the source reports them.", "bytes"
    ),
    MetricFamily(
        "deltaworks_stream_lost_files", "gauge", _STREAM, ("Objects deleted before this run could read them.")
    ),
    MetricFamily("deltaworks_stream_held_tables", "gauge", _STREAM, "Tables whose commits are held."),
    MetricFamily(
        "deltaworks_stream_quarantined_share",
        "gauge",
        _STREAM,
        "Fraction of the last hour's events that was quarantined.",
        "percentunit",
    ),
    MetricFamily(
        "deltaworks_stream_freshness_seconds",
        "gauge",
        ("pipeline", "quantile"),
        "Time from landing to bronze of events read within the last hour.",
        "s",
    ),
    MetricFamily("deltaworks_relay_state", "gauge", ("relay", "state"), "1 for the current state of a relay.", ""),
    MetricFamily("deltaworks_relay_heartbeat_age_seconds", "gauge", _RELAY, "Time since the last heartbeat.", "s"),
    MetricFamily("deltaworks_relay_events_total", "counter", _RELAY, "File events logged by this run."),
    MetricFamily("deltaworks_relay_backlog_messages", "gauge", _RELAY, "Approximate number of waiting messages."),
    MetricFamily(
        "deltaworks_relay_dead_letters", "gauge", _RELAY, "Approximate number of messages in the dead-letter queue."
    ),
    MetricFamily(
        "deltaworks_collector_state", "gauge", ("collector", "state"), ("1 for the current state of a collector."), ""
    ),
    MetricFamily(
        "deltaworks_collector_spool_bytes", "gauge", _COLLECTOR, "Bytes in the spools of its processes.", "bytes"
    ),
    MetricFamily("deltaworks_collector_spool_max_bytes", "gauge", _COLLECTOR, "Maximum size of these spools.", "bytes"),
    MetricFamily("deltaworks_collector_oldest_seconds", "gauge", _COLLECTOR, "Waiting time of the oldest event.", "s"),
    MetricFamily(
        "deltaworks_collector_delivered_total", "counter", ("collector", "source"), "Events accepted by its sinks."
    ),
    MetricFamily(
        "deltaworks_collector_dead_letters",
        "gauge",
        ("collector", "source"),
        ("Events that a sink permanently rejects."),
    ),
    MetricFamily(
        "deltaworks_gold_age_seconds",
        "gauge",
        ("pipeline", "table"),
        "Time since a gold table was last up to date.",
        "s",
    ),
    MetricFamily(
        "deltaworks_gold_max_age_seconds",
        "gauge",
        ("pipeline", "table"),
        "Declared maximum age of a gold table.",
        "s",
    ),
    MetricFamily("deltaworks_alert_open", "gauge", ("cause", "severity"), "Open alerts by cause and severity."),
    MetricFamily("deltaworks_health_age_seconds", "gauge", (), "Time since the last complete health check.", "s"),
    MetricFamily("deltaworks_storage_up", "gauge", (), "1 if the control objects could be read for this scrape.", ""),
    MetricFamily("deltaworks_build_info", "gauge", ("version",), "1, labelled with the running release.", ""),
)
#: Metrics by name.
FAMILIES: Final[Mapping[str, MetricFamily]] = {family.name: family for family in _FAMILIES}


def markdown_table() -> str:
    """Returns the metrics as a Markdown table, for the docs."""
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])
