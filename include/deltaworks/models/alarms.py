"""Metrics of a model's scores, and of the alarms that they would raise, with precision and lead time.

Average precision is `Σ (Rₙ - Rₙ₋₁) Pₙ` over distinct scores from high to low (interpolation would be too optimistic:
Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves", 2006). Rows with equal scores are one
step. Rows may be weighted by their number of resamples.

An entity's alarm starts when its score reaches the threshold; no further alarm follows within the horizon. The
threshold is the lowest one that stays within the alarm budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltaworks.models.spans import DAY_SECONDS

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


Instants = NDArray[np.int64]
#: Number of thresholds tried, from the highest score down.
_MAX_THRESHOLDS: Final = 400


@dataclass(frozen=True, slots=True)
class AlarmMetrics:
    """Metrics of alarms: their number, precision, and median lead time in seconds of true alarms; None if undefined."""

    alarms: int
    precision: float | None
    median_lead_seconds: float | None


def alarm_rows(entities: Instants, at: Instants, scores: Floats, *, threshold: float, quiet_seconds: int) -> Instants:
    """Returns the row indices at which alarms start, ordered by entity and time.

    Args:
        quiet_seconds: minimum time between two alarms of an entity.
    """
    high = np.flatnonzero(scores >= threshold)
    high = high[np.lexsort((at[high], entities[high]))]
    alarm_starts = []
    entity, last = None, 0
    for row in high:
        if entity != entities[row] or at[row] - last >= quiet_seconds:
            alarm_starts.append(row)
            entity, last = entities[row], at[row]
    return np.asarray(alarm_starts, dtype=np.int64)


def alarm_budget(entities: Instants, at: Instants, *, alarms_per_day: float) -> float:
    """Returns the allowed number of alarms: `alarms_per_day` for each day and entity with rows."""
    days = np.unique(np.stack((entities, at // DAY_SECONDS)), axis=1)
    return alarms_per_day * int(days.shape[1])


def lowest_threshold(
    entities: Instants, at: Instants, scores: Floats, *, max_alarms: float, quiet_seconds: int
) -> float:
    """Returns the lowest threshold with at most `max_alarms` alarms. Tries a few hundred thresholds.

    If there is none, returns a threshold above every score.
    """
    distinct = np.unique(scores)[::-1]
    if not len(distinct):
        return float("inf")
    # Thresholds are denser near the highest scores.
    candidates = np.unique(np.round(np.linspace(0, np.sqrt(len(distinct) - 1), _MAX_THRESHOLDS) ** 2).astype(np.int64))
    best = float(np.nextafter(distinct[0], np.inf))
    for threshold in distinct[candidates]:
        alarm_starts = alarm_rows(entities, at, scores, threshold=float(threshold), quiet_seconds=quiet_seconds)
        if len(alarm_starts) > max_alarms:
            break
        best = float(threshold)
    return best


def alarm_metrics(
    entities: Instants,
    at: Instants,
    scores: Floats,
    labels: Flags,
    next_at: Floats,
    *,
    threshold: float,
    quiet_seconds: int,
) -> AlarmMetrics:
    """Returns the alarm metrics of a threshold.

    Args:
        next_at: when the predicted state began; NaN if unknown.
    """
    alarm_starts = alarm_rows(entities, at, scores, threshold=threshold, quiet_seconds=quiet_seconds)
    if not len(alarm_starts):
        return AlarmMetrics(0, None, None)
    true_alarms = alarm_starts[labels[alarm_starts]]
    leads = next_at[true_alarms] - at[true_alarms]
    leads = leads[~np.isnan(leads)]
    return AlarmMetrics(
        len(alarm_starts), float(np.mean(labels[alarm_starts])), float(np.median(leads)) if len(leads) else None
    )
