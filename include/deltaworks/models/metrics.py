"""Metrics of scores: average precision, Brier score and a calibration table.

Average precision is `Σ (Rₙ - Rₙ₋₁) Pₙ` over distinct scores from high to low (interpolation would be too optimistic:
Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves", 2006). Rows with equal scores are one
step. Rows may be weighted by their number of resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
CALIBRATION_BINS = 10


class RankedScores:
    """Scores sorted once, for average precision under many weights."""

    def __init__(self, labels: Flags, scores: Floats) -> None:
        self._order = np.argsort(-scores, kind="stable")
        in_order = scores[self._order]
        self._labels = labels[self._order].astype(np.float64)
        # The last row of each distinct score.
        self._ends = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], len(in_order) > 0))

    def average_precision(self, weights: Floats | None = None) -> float:
        """Returns the average precision; NaN without a positive row."""
        counts = np.ones(len(self._labels)) if weights is None else weights[self._order]
        hits = np.cumsum(counts * self._labels)[self._ends]
        drawn = np.cumsum(counts)[self._ends]
        if not len(hits) or hits[-1] <= 0:
            return float("nan")
        precision = np.divide(hits, drawn, out=np.zeros_like(hits), where=drawn > 0)
        return float(np.sum(np.diff(hits, prepend=0.0) * precision) / hits[-1])


def average_precision(labels: Flags, scores: Floats) -> float:
    """Returns the area under the precision-recall curve; NaN without a positive row."""
    return RankedScores(labels, scores).average_precision()


def brier_score(labels: Flags, scores: Floats) -> float:
    """Returns the mean squared error of scores as probabilities; NaN without rows."""
    return float(np.mean((scores - labels) ** 2)) if len(scores) else float("nan")


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows with similar scores: count, mean score and share of positives."""

    rows: int
    mean_score: float
    positive_share: float


def calibration_table(labels: Flags, scores: Floats, *, bins: int = CALIBRATION_BINS) -> list[CalibrationBin]:
    """Returns calibration bins of equal size, ordered by score, none empty."""
    order = np.argsort(scores, kind="stable")
    parts: list[Any] = np.array_split(order, min(bins, max(1, len(order))))
    return [
        CalibrationBin(len(part), float(np.mean(scores[part])), float(np.mean(labels[part])))
        for part in parts
        if len(part)
    ]
