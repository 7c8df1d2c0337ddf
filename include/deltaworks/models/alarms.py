"""Alarms that scores would raise, and what people would have had of them.

An alarm of an entity begins where its score reaches the threshold; for a horizon after that there is no other, since
the first one speaks of that time. The threshold is the lowest at which there are no more alarms than people want.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltaworks.models.metrics import Flags, Floats
from deltaworks.models.spans import DAY_SECONDS

Instants = NDArray[np.int64]
#: How many thresholds are tried, from the highest score down.
_MAX_THRESHOLDS: Final = 400


@dataclass(frozen=True, slots=True)
class AlarmMetrics:
    """Of the alarms on some rows: how many, the share of them that was right, and of those the median lead in seconds,
    from the alarm to what it announced; None where there is nothing to take it of."""

    alarms: int
    precision: float | None
    median_lead_seconds: float | None


def alarm_rows(entities: Instants, at: Instants, scores: Floats, *, threshold: float, quiet_seconds: int) -> Instants:
    """The places of the rows at which alarms begin, in the order of entity and time.

    Args:
        quiet_seconds: an alarm is the only one of its entity for so long.
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
    """How many alarms there may be: so many for each day of each entity that has rows."""
    days = np.unique(np.stack((entities, at // DAY_SECONDS)), axis=1)
    return alarms_per_day * int(days.shape[1])


def lowest_threshold(
    entities: Instants, at: Instants, scores: Floats, *, max_alarms: float, quiet_seconds: int
) -> float:
    """The lowest score down to which thresholds raise no more alarms than that; above every score where each raises
    more. Of many scores some hundred are tried."""
    distinct = np.unique(scores)[::-1]
    if not len(distinct):
        return float("inf")
    # Few alarms come of the highest scores, so these are tried more closely.
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
    """What a threshold comes to on rows.

    Args:
        next_at: when what is predicted began, NaN where that is not on record.
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
