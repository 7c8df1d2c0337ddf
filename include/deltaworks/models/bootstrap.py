"""Block bootstrap of the difference between two scores' average precision.

Rows close in time are correlated, so blocks are resampled instead of rows: days, or entities if horizons exceed a day.
Both scores are evaluated on the same resamples (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993:
percentile intervals).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltaworks.models.metrics import Flags, Floats, RankedScores

RESAMPLES = 400
CONFIDENCE_LEVEL = 0.95
SEED = 20_251


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """The difference of two average precisions with its confidence interval."""

    value: float
    low: float
    high: float


def area_gain(
    labels: Flags,
    scores: Floats,
    other: Floats,
    blocks: NDArray[np.int64],
    *,
    resamples: int = RESAMPLES,
    level: float = CONFIDENCE_LEVEL,
    seed: int = SEED,
) -> ConfidenceInterval:
    """Returns the gain in average precision of `scores` over `other`. Deterministic.

    Resamples without a positive row are ignored. If none remains, the interval is unbounded.
    """
    ours, theirs = RankedScores(labels, scores), RankedScores(labels, other)
    _, block = np.unique(blocks, return_inverse=True)
    count = int(block.max()) + 1 if len(block) else 0
    draws = np.random.default_rng(seed)
    gains = []
    for _ in range(resamples if count else 0):
        weights = np.bincount(draws.integers(0, count, count), minlength=count).astype(np.float64)[block]
        gains.append(ours.average_precision(weights) - theirs.average_precision(weights))
    drawn = np.asarray([gain for gain in gains if not np.isnan(gain)])
    value = ours.average_precision() - theirs.average_precision()
    if not len(drawn):
        return ConfidenceInterval(value, float("-inf"), float("inf"))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return ConfidenceInterval(value, float(low), float(high))
