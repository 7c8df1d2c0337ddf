"""Since when the oldest record of Kafka waits that a stream has not read, without reading it.

Brokers tell for a time which record is the first that is not older, of all partitions at once. So the time is found
between two bounds, halved until they are near. Where producers set the times of records themselves and not in order,
the answer is as good as theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deltaworks.sources.kafka.offsets import Place

#: For a time in epoch milliseconds, the first offset of a record that is not older; a place without one is left out.
FirstSince = Callable[[int], Mapping[Place, int]]


def oldest_waiting_ms(
    waiting: Mapping[Place, int], first_since: FirstSince, *, earliest_ms: int, now_ms: int, precision_ms: int
) -> int | None:
    """When the oldest of what waits was written, at most `precision_ms` too early; None where nothing waits.

    What is older than `earliest_ms` is told as that.
    """
    if not waiting:
        return None

    def holds_older(than_ms: int) -> bool:
        first = first_since(than_ms)
        return any(place not in first or first[place] > position for place, position in waiting.items())

    low, high = earliest_ms, max(earliest_ms, now_ms)
    if holds_older(low):
        return low
    while high - low > max(1, precision_ms):
        middle = (low + high) // 2
        low, high = (low, middle) if holds_older(middle) else (middle, high)
    return low
