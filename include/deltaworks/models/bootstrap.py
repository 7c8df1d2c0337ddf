"""Whether one score is better than another, or only was on these rows: a block bootstrap of the difference.

Rows near each other in time share what happened, so whole blocks are drawn with replacement and not rows: days, or
entities where horizons are longer than a day and the rows of one entity share nearly all of them. Both scores are
judged on the same draw (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993: percentile intervals).
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
    """A difference of two areas as it is on all rows, and where it lies in most draws."""

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
    """By how much the area of `scores` is larger than that of `other`. The same at each call.

    Draws without a positive row tell nothing and are left out; with none left the interval is all there is.
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
