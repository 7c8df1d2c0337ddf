"""All metrics by name: meaning, labels and unit. Names and labels are stable across releases.

The table in the docs, the Grafana dashboard and the endpoint are generated from this list. Labels contain no event
data, so the number of series only grows with the declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter"]
Unit = Literal["", "s", "bytes", "short", "percentunit"]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric.

    Args:
        name: exported name; a counter ends with `_total`.
        labels: label names.
        help: its meaning in one sentence.
        unit: unit in Grafana's notation.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: Unit = "short"


_STREAM, _RELAY, _COLLECTOR = ("pipeline",), ("relay",), ("collector",)

_FAMILIES: Final = (
    MetricFamily("deltaworks_stream_state", "gauge", ("pipeline", "state"), "1 for the state that a stream is in.", ""),
    MetricFamily(
        "deltaworks_stream_unhealthy", "gauge", ("pipeline", "cause"), "1 while someone has to look, by cause.", ""
    ),
    MetricFamily("deltaworks_stream_heartbeat_age_seconds", "gauge", _STREAM, "Since the last heartbeat.", "s"),
    MetricFamily("deltaworks_stream_lag_seconds", "gauge", _STREAM, "How long the oldest that waits has waited.", "s"),
    MetricFamily("deltaworks_stream_time_left_seconds", "gauge", _STREAM, "Until the source deletes the oldest.", "s"),
    MetricFamily("deltaworks_stream_rows_total", "counter", _STREAM, "Rows that this run of the stream has landed."),
    MetricFamily(
        "deltaworks_stream_quarantined_total", "counter", _STREAM, "Rows that this run has put in quarantine."
    ),
    MetricFamily(
        "deltaworks_stream_backlog_records", "gauge", _STREAM, "Records that wait, where the source counts them."
    ),
    MetricFamily("deltaworks_stream_backlog_files", "gauge", _STREAM, "Files that wait, where the source has files."),
    MetricFamily(
        "deltaworks_stream_backlog_bytes", "gauge", _STREAM, "Bytes that wait, where the source says so.", "bytes"
    ),
    MetricFamily("deltaworks_stream_lost_files", "gauge", _STREAM, "Objects gone before this run could read them."),
    MetricFamily("deltaworks_stream_held_tables", "gauge", _STREAM, "Tables whose commits are held back."),
    MetricFamily(
        "deltaworks_stream_quarantined_share",
        "gauge",
        _STREAM,
        "The share of the events of the last hour that went to quarantine.",
        "percentunit",
    ),
    MetricFamily(
        "deltaworks_stream_freshness_seconds",
        "gauge",
        ("pipeline", "quantile"),
        "From landing to bronze, of what was read within the last hour.",
        "s",
    ),
    MetricFamily("deltaworks_relay_state", "gauge", ("relay", "state"), "1 for the state that a relay is in.", ""),
    MetricFamily("deltaworks_relay_heartbeat_age_seconds", "gauge", _RELAY, "Since the last heartbeat.", "s"),
    MetricFamily("deltaworks_relay_events_total", "counter", _RELAY, "File events that this run has logged."),
    MetricFamily("deltaworks_relay_backlog_messages", "gauge", _RELAY, "About the number of messages that wait."),
    MetricFamily(
        "deltaworks_relay_dead_letters", "gauge", _RELAY, "About the number of messages in the dead-letter queue."
    ),
    MetricFamily("deltaworks_collector_state", "gauge", ("collector", "state"), "1 for the state of a collector.", ""),
    MetricFamily("deltaworks_collector_spool_bytes", "gauge", _COLLECTOR, "What its processes keep on disk.", "bytes"),
    MetricFamily("deltaworks_collector_spool_max_bytes", "gauge", _COLLECTOR, "What they may keep on disk.", "bytes"),
    MetricFamily(
        "deltaworks_collector_oldest_seconds", "gauge", _COLLECTOR, "How long the oldest event has waited.", "s"
    ),
    MetricFamily(
        "deltaworks_collector_delivered_total", "counter", ("collector", "source"), "Events its sinks have taken."
    ),
    MetricFamily(
        "deltaworks_collector_dead_letters", "gauge", ("collector", "source"), "Events that a sink never takes."
    ),
    MetricFamily(
        "deltaworks_gold_age_seconds",
        "gauge",
        ("pipeline", "table"),
        "Since a gold table was last found to be up to date.",
        "s",
    ),
    MetricFamily(
        "deltaworks_gold_max_age_seconds",
        "gauge",
        ("pipeline", "table"),
        "The age that is declared as the most, where one is.",
        "s",
    ),
    MetricFamily("deltaworks_alert_open", "gauge", ("cause", "severity"), "Open alerts of a cause."),
    MetricFamily("deltaworks_health_age_seconds", "gauge", (), "Since the health check last judged everything.", "s"),
    MetricFamily(
        "deltaworks_storage_up", "gauge", (), "1 where the control objects could be read for this answer.", ""
    ),
    MetricFamily("deltaworks_build_info", "gauge", ("version",), "1, with the release that answers.", ""),
)
#: By name.
FAMILIES: Final[Mapping[str, MetricFamily]] = {family.name: family for family in _FAMILIES}


def markdown_table() -> str:
    """Returns the metrics as a Markdown table, for the docs."""
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(["| metric | kind | labels | what it says |", "|---|---|---|---|", *rows])
