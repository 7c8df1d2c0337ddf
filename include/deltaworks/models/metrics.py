"""How good scores are: the area under precision and recall, the Brier score, and a table of calibration.

The area is the average precision, `Σ (Rₙ - Rₙ₋₁) Pₙ` over distinct scores from the highest down (Davis and Goadrich,
"The Relationship Between Precision-Recall and ROC Curves", 2006, say why straight lines between the points are too
kind). Rows of one score come together, so that their order is of no account. Rows may have weights: how often they are
drawn.
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
    """Scores put in order once, whose area is asked for under many weights."""

    def __init__(self, labels: Flags, scores: Floats) -> None:
        self._order = np.argsort(-scores, kind="stable")
        in_order = scores[self._order]
        self._labels = labels[self._order].astype(np.float64)
        # The last row of those that have one score.
        self._ends = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], len(in_order) > 0))

    def average_precision(self, weights: Floats | None = None) -> float:
        """The area; NaN where no row of a weight is positive."""
        counts = np.ones(len(self._labels)) if weights is None else weights[self._order]
        hits = np.cumsum(counts * self._labels)[self._ends]
        drawn = np.cumsum(counts)[self._ends]
        if not len(hits) or hits[-1] <= 0:
            return float("nan")
        precision = np.divide(hits, drawn, out=np.zeros_like(hits), where=drawn > 0)
        return float(np.sum(np.diff(hits, prepend=0.0) * precision) / hits[-1])


def average_precision(labels: Flags, scores: Floats) -> float:
    """The area under precision and recall; NaN without a positive row."""
    return RankedScores(labels, scores).average_precision()


def brier_score(labels: Flags, scores: Floats) -> float:
    """The mean square of what scores, taken for probabilities, are off by; NaN without rows."""
    return float(np.mean((scores - labels) ** 2)) if len(scores) else float("nan")


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of about the same score: how many, their mean score, and the share of them that is positive."""

    rows: int
    mean_score: float
    positive_share: float


def calibration_table(labels: Flags, scores: Floats, *, bins: int = CALIBRATION_BINS) -> list[CalibrationBin]:
    """Rows from the lowest score to the highest in bins of as equal a number as there can be, none of them empty."""
    order = np.argsort(scores, kind="stable")
    parts: list[Any] = np.array_split(order, min(bins, max(1, len(order))))
    return [
        CalibrationBin(len(part), float(np.mean(scores[part])), float(np.mean(labels[part])))
        for part in parts
        if len(part)
    ]
