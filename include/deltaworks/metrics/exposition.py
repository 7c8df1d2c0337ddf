"""The endpoint that Prometheus scrapes: the figures in its text format, on a port of its own, without a login.

What it serves holds names that are declared, states and counts; nothing of an event. Bind it to an address that only
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
    """The figures as Prometheus' client asks for them. Safe from many threads: one reads, and all get what it read.

    Args:
        read: gives all figures as of now.
        keep_seconds: answers within so much time are of one reading, however many ask.
    """

    def __init__(self, read: Callable[[], Sequence[Sample]], *, cache_seconds: float = CACHE_SECONDS) -> None:
        self._read = read
        self._keep_seconds = cache_seconds
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._samples: Sequence[Sample] = ()

    def collect(self) -> Iterable[Metric]:
        """All families that have a figure, in the order of the list."""
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
        """Nothing: registering must not read the storage."""
        return ()

    def _current(self) -> Sequence[Sample]:
        with self._lock:
            if time.monotonic() - self._read_at >= self._keep_seconds:
                self._samples = self._read()
                self._read_at = time.monotonic()
            return self._samples


def build_registry(figures: MetricsCollector) -> CollectorRegistry:
    """A registry with these figures alone: those of this process are of no interest to anybody."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return registry


def serve_metrics(figures: MetricsCollector, *, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Answer `GET /metrics` from threads of its own; port 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """
    return start_wsgi_server(port, addr=host, registry=build_registry(figures))
