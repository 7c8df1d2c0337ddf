"""Metrics of the collector in Prometheus text format. Labels contain no ids, only sources, status codes and error
codes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

#: Bounds for the duration of a sync in seconds, from a fast SSD to a failing disk.
SYNC_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
GROUP_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
#: Bounds for the duration of a sink call in seconds, from a nearby stream to a call that exhausts its retries.
SINK_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """A histogram with fixed bounds. Written by one thread; a concurrent reader may see the last value partially."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, *, labels: str = "") -> Iterable[str]:
        """Yields the histogram as text, with labels such as `source="games"`."""
        count = 0
        before, alone = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
        for bound, number in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            count += number
            yield f'{name}_bucket{{{before}le="{bound}"}} {count}'
        yield f"{name}_sum{alone} {self.sum}"
        yield f"{name}_count{alone} {count}"


@dataclass(slots=True)
class SinkMetrics:
    """Metrics of one source's sink. Written by the delivery thread.

    Attributes:
        seconds: duration of each sink call, including failed ones.
        errors: failed attempts since the start.
    """

    seconds: Histogram = field(default_factory=lambda: Histogram(SINK_BUCKETS))
    errors: int = 0

    @contextmanager
    def measure_call(self) -> Iterator[None]:
        """Measures the duration of a sink call, including failed ones."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds.observe(time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSnapshot:
    """Metrics of one source's sink, and the number of bytes not delivered to it yet."""

    metrics: SinkMetrics
    waiting_bytes: int


class Metrics:
    """Counters of the process. Used by the event loop's thread, except for the spool's histograms."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[int, str]] = Counter()
        self.events: Counter[tuple[str, str]] = Counter()
        self.sync_seconds = Histogram(SYNC_BUCKETS)
        self.group_requests = Histogram(GROUP_BUCKETS)
        #: By source; empty if no drain runs in this process.
        self.sinks: Callable[[], Mapping[str, SinkSnapshot]] = dict

    def text(self, gauges: Mapping[str, float]) -> str:
        """Returns all metrics as text, with the current values of `gauges`."""
        lines = ["# TYPE deltaworks_collector_requests_total counter"]
        lines += [
            f'deltaworks_collector_requests_total{{status="{status}",code="{code}"}} {count}'
            for (status, code), count in sorted(self.requests.items())
        ]
        lines.append("# TYPE deltaworks_collector_events_total counter")
        lines += [
            f'deltaworks_collector_events_total{{source="{source}",verdict="{verdict}"}} {count}'
            for (source, verdict), count in sorted(self.events.items())
        ]
        for name, histogram in (("sync_seconds", self.sync_seconds), ("group_requests", self.group_requests)):
            lines.append(f"# TYPE deltaworks_collector_{name} histogram")
            lines += histogram.lines(f"deltaworks_collector_{name}")
        lines += _sink_lines(self.sinks())
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE deltaworks_collector_{name} gauge", f"deltaworks_collector_{name} {value}"]
        return "\n".join(lines) + "\n"


def _sink_lines(sinks: Mapping[str, SinkSnapshot]) -> list[str]:
    """Returns the metrics of sinks; lines of one metric are consecutive, as the format requires."""
    if not sinks:
        return []
    prefix, ordered = "deltaworks_collector_sink", sorted(sinks.items())
    lines = [f"# TYPE {prefix}_seconds histogram"]
    for source, reading in ordered:
        lines += reading.metrics.seconds.lines(f"{prefix}_seconds", labels=f'source="{source}"')
    lines.append(f"# TYPE {prefix}_errors_total counter")
    lines += [f'{prefix}_errors_total{{source="{source}"}} {reading.metrics.errors}' for source, reading in ordered]
    lines.append(f"# TYPE {prefix}_waiting_bytes gauge")
    lines += [f'{prefix}_waiting_bytes{{source="{source}"}} {reading.waiting_bytes}' for source, reading in ordered]
    return lines
