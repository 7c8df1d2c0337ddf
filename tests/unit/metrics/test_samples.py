"""Metrics for Prometheus: values of control objects under stable names; unreadable values are omitted."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deltaworks.alerts.raising import raise_alert
from deltaworks.control import paths
from deltaworks.control.health.report import write_verdicts
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.control.summaries.stream import BatchSummary, RecentBatches
from deltaworks.errors import TransientError
from deltaworks.metrics.samples import (
    FAMILIES,
    MetricsCollector,
    build_registry,
    markdown_table,
    read_samples,
    serve_metrics,
)
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import pipeline_spec
from tests.heartbeats import put_heartbeat
from tests.recording_objects import NotingObjects
from tests.records import record_of
from tests.unit.control.health.test_collectors import heartbeat_of as collector_beat
from tests.unit.kubernetes.conftest import COLLECTOR, write_collector
from tests.unit.specs.conftest import write_project

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
Read = Callable[[], dict[tuple[str, ...], float]]


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def beat(objects: ObjectStore, folder: str, **values: Any) -> None:
    put_heartbeat(objects, folder, **{"written_at": ago(3), "started_at": ago(3600), "trigger_seconds": 10} | values)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog("local", root=write_project(tmp_path))


@pytest.fixture
def read(catalog: Catalog, objects: LocalObjects) -> Read:
    def call() -> dict[tuple[str, ...], float]:
        return {(s.name, *s.labels): s.value for s in read_samples(catalog, objects, now=NOW)}

    return call


def test_a_streams_metrics_follow_its_heartbeat(read: Read, objects: LocalObjects) -> None:
    beat(
        objects,
        paths.pipeline_control("shop"),
        rows=1200,
        quarantined=4,
        backlog_records=90,
        oldest_pending_at=ago(41),
        retention_seconds=3600,
        held=({"table": "events"},),
    )

    observed = read()

    assert observed["deltaworks_stream_lag_seconds", "shop"] == 41
    assert observed["deltaworks_stream_rows_total", "shop"] == 1200
    assert observed["deltaworks_stream_backlog_records", "shop"] == 90
    assert observed["deltaworks_stream_time_left_seconds", "shop"] == 3600 - 41
    assert observed["deltaworks_stream_held_tables", "shop"] == 1
    assert observed["deltaworks_stream_heartbeat_age_seconds", "shop"] == 3
    states = {key[2]: value for key, value in observed.items() if key[0] == "deltaworks_stream_state"}
    assert sum(states.values()) == 1
    assert ("deltaworks_stream_backlog_files", "shop") not in observed, "a source that counts none has no figure of 0"


def test_bronze_freshness_comes_from_recent_batches(read: Read, objects: LocalObjects) -> None:
    batch = record_of(BatchSummary, batch_id=1, at=ago(60), rows=10, arrival_ages=(2.0, 4.0, 9.0, 40.0))
    recent = RecentBatches(pipeline="shop", written_at=ago(60), batches=(batch,))
    objects.put(paths.recent_batches("shop"), recent.encode())

    observed = read()

    assert observed["deltaworks_stream_freshness_seconds", "shop", "0.5"] == 4.0
    assert observed["deltaworks_stream_freshness_seconds", "shop", "0.95"] == 40.0


def test_a_hung_stream_is_unhealthy_with_its_cause(read: Read, objects: LocalObjects) -> None:
    beat(objects, paths.pipeline_control("shop"), written_at=ago(9000))

    observed = read()

    assert observed["deltaworks_stream_unhealthy", "shop", "HEARTBEAT_STALE"] == 1
    assert observed["deltaworks_stream_state", "shop", "unhealthy"] == 1
    assert observed["deltaworks_stream_state", "shop", "healthy"] == 0


def test_a_relay_shows_its_queue_and_its_dead_letters(read: Read, objects: LocalObjects) -> None:
    beat(objects, paths.relay_control("landing"), pipeline="landing", rows=70, backlog_files=12, dead_letters=3)

    observed = read()

    assert observed["deltaworks_relay_events_total", "landing"] == 70
    assert observed["deltaworks_relay_backlog_messages", "landing"] == 12
    assert observed["deltaworks_relay_dead_letters", "landing"] == 3


def test_open_alerts_are_counted_by_cause(read: Read, objects: LocalObjects) -> None:
    for table_name in ("a", "b"):
        raise_alert(objects, cause="TABLE_SUSPENDED", subject=f"shop.{table_name}", summary="held", now=NOW)

    counted = [value for key, value in read().items() if key[:2] == ("deltaworks_alert_open", "TABLE_SUSPENDED")]

    assert counted == [2]


def test_the_age_of_the_last_health_check_is_exported(read: Read, objects: LocalObjects) -> None:
    assert ("deltaworks_health_age_seconds",) not in read()

    write_verdicts(objects, {}, now=NOW - timedelta(seconds=75))

    assert read()["deltaworks_health_age_seconds",] == 75


@pytest.mark.parametrize(
    ("record", "rows"),
    [({"late_rows": {"2026-01-01": 30, "2026-01-02": 10}}, 40.0), ({"at": ago(0)}, 0.0), ({"late_rows": "torn"}, 0.0)],
)
def test_late_rows_of_frozen_dates_are_exported_for_tables_that_freeze_dates(
    catalog: Catalog, objects: LocalObjects, record: dict[str, Any], rows: float
) -> None:
    tables = [
        {"name": name, "sql": "x.sql", "reads": ["orders"], "partition_by": "event_date", **more}
        for name, more in (("frozen", {"frozen_after": "30d"}), ("open", {}))
    ]
    spec = pipeline_spec({"name": "orders", "catch_all": True}, gold={"tables": tables})
    for table in ("frozen", "open"):
        objects.put(paths.gold_state("shop", table), json.dumps(record).encode())

    samples = read_samples(replace(catalog, pipelines={"shop": spec}), objects, now=NOW)

    late = {sample.labels: sample.value for sample in samples if sample.name == "deltaworks_gold_late_rows"}
    assert late == {("shop", "frozen"): rows}


def test_a_corrupt_record_does_not_hide_other_collectors(tmp_path: Path, read: Read, objects: LocalObjects) -> None:
    two = COLLECTOR.replace("collector: edge", "collector: west")
    write_collector(tmp_path)
    (tmp_path / "include" / "collectors" / "west.yaml").write_text(two)
    catalog = load_catalog("local", root=tmp_path)
    objects.put(paths.collector_heartbeat("edge", "a" * 32), b"{torn")
    objects.put(
        paths.collector_heartbeat("west", "b" * 32), collector_beat(collector="west", written_at=ago(5)).encode()
    )

    observed = {(s.name, *s.labels): s.value for s in read_samples(catalog, objects, now=NOW)}

    assert observed["deltaworks_collector_state", "edge", "unhealthy"] == 1
    assert ("deltaworks_collector_spool_bytes", "edge") not in observed
    assert observed["deltaworks_collector_spool_bytes", "west"] == 1 << 20
    assert observed["deltaworks_storage_up",] == 0


def test_shared_objects_are_read_once(tmp_path: Path) -> None:
    write_collector(write_project(tmp_path / "project"))
    catalog, objects = load_catalog("local", root=tmp_path / "project"), NotingObjects(tmp_path / "lake")
    objects.put(paths.collector_heartbeat("edge", "a" * 32), collector_beat(written_at=ago(5)).encode())
    write_verdicts(objects, {}, now=NOW)
    objects.reads.clear()

    read_samples(catalog, objects, now=NOW)

    assert objects.reads.count(paths.health_verdicts()) == 1
    assert objects.reads.count(paths.collector_heartbeat("edge", "a" * 32)) == 1


class _Silent(LocalObjects):
    """A storage that does not answer."""

    def get(self, key: str) -> Any:
        raise TransientError("STORAGE_UNREACHABLE", key)

    def list(self, prefix: str) -> Any:
        raise TransientError("STORAGE_UNREACHABLE", prefix)


def test_an_unavailable_storage_is_a_metric_and_not_an_error(catalog: Catalog, tmp_path: Path) -> None:
    observed = {(s.name, *s.labels): s.value for s in read_samples(catalog, _Silent(tmp_path), now=NOW)}

    assert observed["deltaworks_storage_up",] == 0
    assert ("deltaworks_stream_lag_seconds", "shop") not in observed
    assert observed["deltaworks_stream_unhealthy", "shop", "HEARTBEAT_UNREADABLE"] == 1


def test_a_corrupt_heartbeat_does_not_hide_other_metrics(read: Read, objects: LocalObjects) -> None:
    objects.put(paths.heartbeat(paths.pipeline_control("shop")), b"{torn")
    beat(objects, paths.relay_control("landing"), pipeline="landing", dead_letters=3)

    observed = read()

    assert observed["deltaworks_relay_dead_letters", "landing"] == 3
    assert observed["deltaworks_storage_up",] == 0


def test_exported_metrics_are_listed_with_their_labels(catalog: Catalog, read: Read, objects: LocalObjects) -> None:
    beat(objects, paths.pipeline_control("shop"), rows=1, backlog_bytes=3, backlog_files=2)
    beat(objects, paths.relay_control("landing"), pipeline="landing", dead_letters=3)
    figures = MetricsCollector(lambda: read_samples(catalog, objects, now=NOW))

    text = generate_latest(build_registry(figures)).decode()

    names = set(re.findall(r"^(deltaworks_[a-z_]+)", text, re.MULTILINE))
    assert names <= set(FAMILIES)
    assert {key[0] for key in read()} == names
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            assert tuple(sorted(sample.labels)) == tuple(sorted(FAMILIES[sample.name].labels)), sample.name


def test_a_hostile_name_cannot_break_out_of_its_label() -> None:
    from deltaworks.metrics.samples import Sample

    name = 'a"} 1\ndeltaworks_storage_up 0\n\\'
    figures = MetricsCollector(lambda: [Sample("deltaworks_stream_lag_seconds", (name,), 5)])

    (metric,) = text_string_to_metric_families(generate_latest(build_registry(figures)).decode())

    assert metric.samples[0].labels == {"pipeline": name}
    assert len(metric.samples) == 1


@pytest.fixture
def served(catalog: Catalog, objects: LocalObjects) -> Iterator[tuple[str, list[int]]]:
    """The address of an endpoint, and a list that grows with each reading."""
    sample_values: list[int] = []

    def reading() -> Any:
        sample_values.append(1)
        return read_samples(catalog, objects, now=NOW)

    server, _ = serve_metrics(MetricsCollector(reading, cache_seconds=3600), host="127.0.0.1", port=0)
    yield f"http://127.0.0.1:{server.server_port}/metrics", sample_values
    server.shutdown()
    server.server_close()


def test_concurrent_scrapes_share_one_read(served: tuple[str, list[int]]) -> None:
    address, sample_values = served

    for _ in range(3):
        with urllib.request.urlopen(address) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert b'deltaworks_stream_state{pipeline="shop",state="starting"}' in answer.read()

    assert len(sample_values) == 1


def test_the_docs_list_every_metric() -> None:
    assert markdown_table() in (PROJECT_ROOT / "docs" / "reference/metrics.md").read_text()
