"""The collector's metrics in Prometheus text format. Labels contain no ids, only sources, status codes and error codes.

Values are counted in `collector.metrics`, because the client's own metrics take a lock for each increment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from collector.metrics import Histogram, Metrics, SinkSnapshot

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_PREFIX: Final = "deltaworks_collector"


@dataclass(frozen=True, slots=True)
class _Families:
    """What the client asks for the metrics of one scrape."""

    metrics: Metrics
    gauges: Mapping[str, float]

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(f"{_PREFIX}_requests", "Responses by status and error code.", labels=_RESPONSE)
        for (status, code), count in sorted(self.metrics.requests.items()):
            requests.add_metric((str(status), code), count)
        yield requests
        events = CounterMetricFamily(f"{_PREFIX}_events", "Events by source and verdict.", labels=("source", "verdict"))
        for labels, count in sorted(self.metrics.events.items()):
            events.add_metric(labels, count)
        yield events
        yield _histogram("sync_seconds", "Duration of a sync of the spool.", {(): self.metrics.sync_seconds})
        yield _histogram("group_requests", "Requests that share one sync.", {(): self.metrics.group_requests})
        if sinks := self.metrics.sinks():
            yield from _sinks(sinks)
        for name, value in sorted(self.gauges.items()):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", _GAUGES[name], value)


_RESPONSE: Final = ("status", "code")
_SOURCE: Final = ("source",)
_GAUGES: Final[Mapping[str, str]] = {
    "spool_bytes": "Bytes in the spool.",
    "spool_disk_failures": "Failed syncs since the start.",
    "spool_fill": "Fraction of the quota in use; 1 while events are rejected.",
    "spool_next_seq": "Sequence number of the next event.",
    "spool_oldest_seconds": "Age of the oldest segment.",
}


def exposition(metrics: Metrics, gauges: Mapping[str, float]) -> bytes:
    """Returns all metrics as text, with the current values of the spool's gauges."""
    return generate_latest(_Families(metrics, gauges))


def _sinks(sinks: Mapping[str, SinkSnapshot]) -> Iterator[Metric]:
    snapshots: dict[tuple[str, ...], SinkSnapshot] = {(source,): sinks[source] for source in sorted(sinks)}
    durations = {labels: snapshot.metrics.seconds for labels, snapshot in snapshots.items()}
    yield _histogram("sink_seconds", "Duration of a call of the sink, including failed ones.", durations, _SOURCE)
    errors = CounterMetricFamily(f"{_PREFIX}_sink_errors", "Failed attempts to deliver.", labels=_SOURCE)
    waiting = GaugeMetricFamily(f"{_PREFIX}_sink_waiting_bytes", "Bytes not delivered to the sink yet.", labels=_SOURCE)
    for labels, snapshot in snapshots.items():
        errors.add_metric(labels, snapshot.metrics.errors)
        waiting.add_metric(labels, snapshot.waiting_bytes)
    yield from (errors, waiting)


def _histogram(
    name: str, help_text: str, histograms: Mapping[tuple[str, ...], Histogram], labels: tuple[str, ...] = ()
) -> Metric:
    family = HistogramMetricFamily(f"{_PREFIX}_{name}", help_text, labels=labels)
    for values, histogram in histograms.items():
        family.add_metric(values, histogram.buckets(), histogram.sum)
    return family
