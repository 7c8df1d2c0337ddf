"""HTTP endpoint for Prometheus, on a separate port and without authentication.

Metrics contain declared names, states and counts, but no event data. Bind the endpoint to an address that only
Prometheus reaches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_wsgi_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deltaworks.metrics.families import FAMILIES
from deltaworks.metrics.samples import Sample

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
