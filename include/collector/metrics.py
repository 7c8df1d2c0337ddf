"""Metrics of the collector: counters and histograms that cost a request almost nothing. `collector.exposition` makes
Prometheus text of them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
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

    def buckets(self) -> list[tuple[str, float]]:
        """Returns the number of values up to each bound."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


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
