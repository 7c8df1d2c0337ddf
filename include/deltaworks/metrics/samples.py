"""Metrics for Prometheus: declares all metrics, collects their samples, and serves them over HTTP.

Names and labels are stable across releases. Labels contain no event data, so the number of series depends only on the
declarations. If a part cannot be read, its samples are omitted and `deltaworks_storage_up` is 0. A missing sample does
not mean 0.

The endpoint has a separate port and no authentication. Metrics contain declared names, states and counts, but no event
data. Bind it to an address that only Prometheus reaches.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, Literal, get_args
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_wsgi_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deltaworks import __version__
from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.background import map_concurrently
from deltaworks.control.clock import parse_iso
from deltaworks.control.health import report as health_report
from deltaworks.control.health.collectors import CollectorFacts, collector_reports, read_collectors
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthState, age_seconds
from deltaworks.control.health.report import Report
from deltaworks.control.health.verdicts import Verdict
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.records.collector import CollectorHeartbeat
from deltaworks.control.records.store import RecordStore
from deltaworks.control.summaries.jobs import late_rows_of
from deltaworks.control.summaries.stream import RecentBatches, gold_waiting_since, read_recent
from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog

# Samples.

log = logging.getLogger(__name__)
#: Cause of a health verdict if the heartbeat could not be read.
_UNREADABLE = "HEARTBEAT_UNREADABLE"
STATES: tuple[str, ...] = get_args(HealthState)
#: Minutes of the recent share of quarantined events.
RECENT_MINUTES: Final = 5
_LABEL_BY_KIND = {"stream": "pipeline", "relay": "relay", "collector": "collector"}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample: metric name, label values in order, value."""

    name: str
    labels: tuple[str, ...]
    value: float


def read_samples(catalog: Catalog, objects: ObjectStore, *, now: datetime) -> list[Sample]:
    """Returns all current samples. Never raises; takes at most a few seconds if the storage responds."""
    # Two parts use each of these, so they are read once.
    verdicts = cache(lambda: objects.get(paths.health_verdicts()))
    collectors = cache(lambda: read_collectors(catalog, objects))
    parts: tuple[Callable[[], Iterable[Sample]], ...] = (
        lambda: _subjects(catalog, objects, collectors(), previous=_previous_verdicts(verdicts), now=now),
        lambda: _collectors(collectors(), now),
        lambda: _freshness(catalog, objects, now),
        lambda: _gold(catalog, objects, now),
        lambda: _alerts(objects),
        lambda: _health(verdicts(), now),
    )
    samples, up = [Sample("deltaworks_build_info", (__version__,), 1)], True
    for part in parts:
        try:
            samples += part()
        except Exception as error:  # other parts are still reported
            log.warning("Some metrics are missing: %s", error)
            up = False
    up = up and not any(sample.labels[1:] == (_UNREADABLE,) for sample in samples)
    finite = [sample for sample in samples if math.isfinite(sample.value)]
    return [*finite, Sample("deltaworks_storage_up", (), float(up))]


def _subjects(
    catalog: Catalog,
    objects: ObjectStore,
    collectors: Iterable[CollectorFacts],
    *,
    previous: Mapping[str, Verdict],
    now: datetime,
) -> Iterator[Sample]:
    items = health_report.with_waiting_causes(
        catalog, health_report.check_subjects(health_report.subjects(catalog), objects, previous=previous, now=now)
    )
    items += health_report.invalid_spec_reports(catalog, objects, previous=previous, now=now)
    items += collector_reports(collectors, previous=previous, now=now)
    for item in items:
        kind, name = item.subject.kind, item.subject.name
        if kind in _LABEL_BY_KIND:
            yield from _states(kind, name, item.verdict.state)
        if kind == "stream":
            yield from _stream(item, now)
        if kind == "relay" and item.heartbeat is not None:
            yield from _relay(name, item.heartbeat, now)


def _previous_verdicts(verdicts: Callable[[], StoredObject | None]) -> dict[str, Verdict]:
    """Returns the last verdicts of the health check, which contain since when there is no input.

    Returns nothing if they cannot be read.
    """
    try:
        item = verdicts()
        return health_report.decode_verdicts(item.data) if item is not None else {}
    except DeltaworksError as error:
        log.warning("Cannot read the last verdicts: %s", error)
        return {}


def _states(kind: str, name: str, current: str) -> Iterator[Sample]:
    for state in STATES:
        yield Sample(f"deltaworks_{kind}_state", (name, state), float(state == current))


def _stream(item: Report, now: datetime) -> Iterator[Sample]:
    name, verdict, beat = (item.subject.name,), item.verdict, item.heartbeat
    if verdict.is_unhealthy:
        yield Sample("deltaworks_stream_unhealthy", (*name, verdict.cause), 1)
    if verdict.time_left_seconds is not None:
        yield Sample("deltaworks_stream_time_left_seconds", name, verdict.time_left_seconds)
    hour = item.throughput.last_hour(now)
    yield Sample("deltaworks_stream_quarantined_share", name, hour.quarantined_share)
    recent = item.throughput.last_minutes(now, RECENT_MINUTES)
    yield Sample("deltaworks_stream_recent_quarantined_share", name, recent.quarantined_share)
    if beat is None:
        return
    lag = age_seconds(beat.oldest_pending_at, now) if beat.oldest_pending_at is not None else 0.0
    values_by_name: Mapping[str, float | None] = {
        "heartbeat_age_seconds": age_seconds(beat.written_at, now),
        "lag_seconds": lag,
        "rows_total": beat.rows,
        "quarantined_total": beat.quarantined,
        "backlog_records": beat.backlog_records,
        "backlog_files": beat.backlog_files,
        "backlog_bytes": beat.backlog_bytes,
        "lost_files": beat.lost_files,
        "held_tables": len(beat.held),
    }
    for name_suffix, value in values_by_name.items():
        if value is not None:
            yield Sample(f"deltaworks_stream_{name_suffix}", name, value)


def _relay(name: str, beat: Heartbeat, now: datetime) -> Iterator[Sample]:
    values_by_name: Mapping[str, float | None] = {
        "heartbeat_age_seconds": age_seconds(beat.written_at, now),
        "events_total": beat.rows,
        "backlog_messages": beat.backlog_files,
        "dead_letters": beat.dead_letters,
    }
    for name_suffix, value in values_by_name.items():
        if value is not None:
            yield Sample(f"deltaworks_relay_{name_suffix}", (name,), value)


def _collectors(collectors: Iterable[CollectorFacts], now: datetime) -> Iterator[Sample]:
    """Yields samples of all collectors, then raises if one of them could not be read."""
    read_error = None
    for facts in collectors:
        read_error = read_error or facts.error
        beats = [beat for beat in facts.heartbeats if beat.state != "ended" or beat.oldest_at is not None]
        if beats:
            yield from _collector(facts.name, beats, now)
    if read_error is not None:
        raise read_error


def _collector(name: str, beats: list[CollectorHeartbeat], now: datetime) -> Iterator[Sample]:
    yield Sample("deltaworks_collector_spool_bytes", (name,), sum(beat.spool_bytes for beat in beats))
    yield Sample("deltaworks_collector_spool_max_bytes", (name,), sum(beat.spool_max_bytes for beat in beats))
    oldest = (age_seconds(beat.oldest_at, now) for beat in beats if beat.oldest_at is not None)
    yield Sample("deltaworks_collector_oldest_seconds", (name,), max(oldest, default=0.0))
    delivered: Counter[str] = Counter()
    dead_letters: Counter[str] = Counter()
    for beat in beats:
        for source, counts in beat.sources.items():
            delivered[source] += counts.delivered
            dead_letters[source] += counts.dead_letters
    for source in sorted(delivered):
        yield Sample("deltaworks_collector_delivered_total", (name, source), delivered[source])
        yield Sample("deltaworks_collector_dead_letters", (name, source), dead_letters[source])


def _freshness(catalog: Catalog, objects: ObjectStore, now: datetime) -> Iterator[Sample]:
    records, names = RecordStore(objects, RecentBatches), list(catalog.pipelines)
    for name, recent in zip(
        names, map_concurrently(lambda name: records.read(paths.recent_batches(name)), names), strict=True
    ):
        freshness = recent.freshness(now) if recent is not None else None
        for quantile, seconds in zip(("0.5", "0.95"), freshness or (), strict=False):
            yield Sample("deltaworks_stream_freshness_seconds", (name, quantile), seconds)


def _gold(catalog: Catalog, objects: ObjectStore, now: datetime) -> Iterator[Sample]:
    tables = [(name, table) for name, spec in catalog.pipelines.items() for table in spec.gold.tables]
    recent = cache(partial(read_recent, objects))
    stored = map_concurrently(lambda item: objects.get(paths.gold_state(item[0], item[1].name)), tables)
    for (pipeline, table), item in zip(tables, stored, strict=True):
        max_age_minutes = catalog.pipelines[pipeline].gold.max_age_of(table)
        if max_age_minutes is not None:
            yield Sample("deltaworks_gold_max_age_seconds", (pipeline, table.name), 60 * max_age_minutes)
            record = _record_of(item)
            waits = gold_waiting_since(objects, catalog.pipelines[pipeline], table, record, recent=recent)
            waited = 0.0 if waits is None else max(0.0, (now - waits).total_seconds())
            yield Sample("deltaworks_gold_waiting_seconds", (pipeline, table.name), waited)
        if table.frozen_after is not None:
            late_rows = sum(late_rows_of(_record_of(item)).values())
            yield Sample("deltaworks_gold_late_rows", (pipeline, table.name), late_rows)
        recorded_at = _recorded_time(item.data) if item is not None else None
        if recorded_at is not None:
            age = max(0.0, (now - recorded_at).total_seconds())
            yield Sample("deltaworks_gold_age_seconds", (pipeline, table.name), age)


def _record_of(item: StoredObject | None) -> dict[str, Any]:
    """Returns a stored record; empty if there is none, or if it is damaged."""
    with contextlib.suppress(ValueError, TypeError):
        return dict(json.loads(item.data)) if item else {}
    return {}


def _alerts(objects: ObjectStore) -> Iterator[Sample]:
    open_alerts: Counter[tuple[str, str]] = Counter()
    for alert in alerts(objects):
        if alert.state.is_open:
            open_alerts[alert.cause, str(alert.state.severity)] += 1
    for labels, number in sorted(open_alerts.items()):
        yield Sample("deltaworks_alert_open", labels, number)


def _health(item: StoredObject | None, now: datetime) -> Iterator[Sample]:
    recorded_at = _recorded_time(item.data, "written_at") if item is not None else None
    if recorded_at is not None:
        yield Sample("deltaworks_health_age_seconds", (), max(0.0, (now - recorded_at).total_seconds()))


def _recorded_time(data: bytes, name: str = "at") -> datetime | None:
    """Returns the recorded time of an object; None if it is corrupt."""
    try:
        return parse_iso(json.loads(data)[name])
    except (ValueError, KeyError, TypeError):
        return None


# All metrics.

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
    MetricFamily("deltaworks_stream_quarantined_total", "counter", _STREAM, "Events quarantined by this run."),
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
        "deltaworks_stream_recent_quarantined_share",
        "gauge",
        _STREAM,
        "Fraction of the events of the last 5 minutes that was quarantined.",
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
        "deltaworks_gold_late_rows",
        "gauge",
        ("pipeline", "table"),
        "Rows that arrived after their date of a gold table was frozen (`frozen_after`), and are not in it.",
    ),
    MetricFamily(
        "deltaworks_gold_waiting_seconds",
        "gauge",
        ("pipeline", "table"),
        "Time since the first rows landed that a gold table with a declared maximum has not; 0 if none wait.",
        "s",
    ),
    MetricFamily(
        "deltaworks_gold_max_age_seconds",
        "gauge",
        ("pipeline", "table"),
        "Declared maximum time for which landed rows wait for a gold table.",
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


# The endpoint.

CACHE_SECONDS = 5.0


class MetricsCollector(Collector):
    """Collector for the Prometheus client. Thread-safe: concurrent scrapes share one read.

    Args:
        read: returns all current metrics.
        cache_seconds: scrapes within this time share one read.
    """

    def __init__(self, read: Callable[[], Sequence[Sample]], *, cache_seconds: float = CACHE_SECONDS) -> None:
        self._read = read
        self._keep_seconds = cache_seconds
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._samples: Sequence[Sample] = ()

    def collect(self) -> Iterable[Metric]:
        """Yields all metric families with samples, in the order of `FAMILIES`."""
        by_name: dict[str, list[Sample]] = {}
        for sample in self._current():
            by_name.setdefault(sample.name, []).append(sample)
        for name, family in FAMILIES.items():
            samples = by_name.get(name)
            if not samples:
                continue
            metric: CounterMetricFamily | GaugeMetricFamily
            if family.kind == "counter":
                metric = CounterMetricFamily(name, family.help, labels=family.labels)
            else:
                metric = GaugeMetricFamily(name, family.help, labels=family.labels)
            for sample in samples:
                metric.add_metric(sample.labels, sample.value)
            yield metric

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, because registering the collector must not read the storage."""
        return ()

    def _current(self) -> Sequence[Sample]:
        with self._lock:
            if time.monotonic() - self._read_at >= self._keep_seconds:
                self._samples = self._read()
                self._read_at = time.monotonic()
            return self._samples


def build_registry(collector: MetricsCollector) -> CollectorRegistry:
    """Returns a registry with only these metrics, without the client's default process metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def serve_metrics(collector: MetricsCollector, *, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serves `GET /metrics` in threads; port 0 selects a free port.

    Raises:
        OSError: the port is in use.
    """
    return start_wsgi_server(port, addr=host, registry=build_registry(collector))
