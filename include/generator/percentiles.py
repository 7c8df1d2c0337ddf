"""Percentiles of a list, interpolated between its two nearest values, as SQL's percentile_cont defines them."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """The value below which `share` of the values lie; None of no values."""
    if not values:
        return None
    sorted_values = sorted(values)
    position = fraction * (len(sorted_values) - 1)
    below = int(position)
    above = min(below + 1, len(sorted_values) - 1)
    return sorted_values[below] + (sorted_values[above] - sorted_values[below]) * (position - below)
