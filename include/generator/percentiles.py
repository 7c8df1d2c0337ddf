"""Percentiles with linear interpolation, like SQL's percentile_cont."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """Returns the percentile of the values at `fraction` (0 to 1); None for no values."""
    if not values:
        return None
    sorted_values = sorted(values)
    position = fraction * (len(sorted_values) - 1)
    below = int(position)
    above = min(below + 1, len(sorted_values) - 1)
    return sorted_values[below] + (sorted_values[above] - sorted_values[below]) * (position - below)
