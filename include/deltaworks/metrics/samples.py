"""Collects metric samples: state and heartbeats of streams, relays and collectors, age of gold tables, open alerts.

If a part cannot be read, its samples are omitted and `deltaworks_storage_up` is 0. A missing sample does not mean 0.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import get_args

from deltaworks import __version__
from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.concurrency import map_concurrently
from deltaworks.control.health import report as health_report
from deltaworks.control.health.collectors import CollectorFacts, collector_reports, read_collectors
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthState, age_seconds
from deltaworks.control.health.report import Report
from deltaworks.control.health.verdicts import Verdict
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.records.collector import CollectorHeartbeat
from deltaworks.control.records.store import RecordStore
from deltaworks.control.summaries.stream import RecentBatches
from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog

log = logging.getLogger(__name__)
#: Cause of a health verdict if the heartbeat could not be read.
_UNREADABLE = "HEARTBEAT_UNREADABLE"
STATES: tuple[str, ...] = get_args(HealthState)
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
    items = health_report.check_subjects(health_report.subjects(catalog), objects, previous=previous, now=now)
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
    stored = map_concurrently(lambda item: objects.get(paths.gold_state(item[0], item[1].name)), tables)
    for (pipeline, table), item in zip(tables, stored, strict=True):
        if table.checks.max_age_minutes is not None:
            declared = 60 * table.checks.max_age_minutes
            yield Sample("deltaworks_gold_max_age_seconds", (pipeline, table.name), declared)
        recorded_at = _recorded_time(item.data) if item is not None else None
        if recorded_at is not None:
            age = max(0.0, (now - recorded_at).total_seconds())
            yield Sample("deltaworks_gold_age_seconds", (pipeline, table.name), age)


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
