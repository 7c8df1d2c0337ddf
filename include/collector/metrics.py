"""Figures of the collector in the text format of Prometheus. No label holds an id: sources, statuses, codes alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Seconds of a sync: from a fast SSD to a disk in trouble.
SYNC_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
GROUP_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Histogram:
    """Counts of values up to bounds. Written by one thread; a reader may see the last value in part."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterable[str]:
        """The histogram as text."""
        count = 0
        for bound, number in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            count += number
            yield f'{name}_bucket{{le="{bound}"}} {count}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {count}"


class Metrics:
    """What the process counts. Used by the thread of the event loop, but for the histograms of the spool."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.events: Counter[tuple[str, str]] = Counter()
        self.sync_seconds = Histogram(SYNC_BUCKETS)
        self.group_requests = Histogram(GROUP_BUCKETS)

    def text(self, gauges: Mapping[str, float]) -> str:
        """All figures, with the current values of `gauges`."""
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
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE deltaworks_collector_{name} gauge", f"deltaworks_collector_{name} {value}"]
        return "\n".join(lines) + "\n"
