"""Baselines of predictions: persistence (the present state continues) and seasonal (the same hour of the week).

Both predict the rate of positive labels among similar training rows. They use only the state and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from deltaworks.models.alarms import Flags, Floats, Instants

Baseline = Literal["persistence", "seasonal"]
_HOUR_SECONDS: Final = 3_600
_WEEK_HOURS: Final = 168
#: Weight of the prior rate, expressed as a number of rows.
_PRIOR_ROWS: Final = 20.0


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows without features: entity number, time, label, next start of the state, and its last time (NaN if
    unknown)."""

    entities: Instants
    at: Instants
    labels: Flags
    next_at: Floats
    last_at: Floats

    def __len__(self) -> int:
        return len(self.at)


#: Scores rows.
Scorer = Callable[[LabelledRows], Floats]


def fit_baseline(name: Baseline, training: LabelledRows) -> Scorer:
    """Fits the baseline with this name to training rows."""
    return _FITTERS[name](training)


def fit_persistence(training: LabelledRows) -> Scorer:
    """Fits the rate of positive labels by the time since the last known state, in buckets of doubling width."""
    rates = _shrunk_rates(
        _age_groups(training), training.labels, np.full(len(training), _positive_rate(training.labels))
    )
    overall_rate = _positive_rate(training.labels)
    return lambda rows: _look_up_rates(rates, _age_groups(rows), np.full(len(rows), overall_rate))


def fit_seasonal(training: LabelledRows) -> Scorer:
    """Fits the rate of positive labels by entity and hour of the week, shrunk towards the rate of all entities at that
    hour.
    """
    hour_rates = _shrunk_rates(
        _hour_groups(training), training.labels, np.full(len(training), _positive_rate(training.labels))
    )
    overall_rate = _positive_rate(training.labels)

    def hour_rate(rows: LabelledRows) -> Floats:
        return _look_up_rates(hour_rates, _hour_groups(rows), np.full(len(rows), overall_rate))

    entity_rates = _shrunk_rates(_entity_hour_groups(training), training.labels, hour_rate(training))
    return lambda rows: _look_up_rates(entity_rates, _entity_hour_groups(rows), hour_rate(rows))


_FITTERS: Final[Mapping[Baseline, Callable[[LabelledRows], Scorer]]] = {
    "persistence": fit_persistence,
    "seasonal": fit_seasonal,
}


def _positive_rate(labels: Flags) -> float:
    return float(np.mean(labels)) if len(labels) else 0.0


def _shrunk_rates(groups: NDArray[np.int64], labels: Flags, priors: Floats) -> dict[int, float]:
    """Returns the rate of positive labels of each group, shrunk towards the prior rate of its rows."""
    names, group_index = np.unique(groups, return_inverse=True)
    rows = np.bincount(group_index, minlength=len(names))
    positive = np.bincount(group_index, weights=labels.astype(np.float64), minlength=len(names))
    prior = np.bincount(group_index, weights=priors, minlength=len(names)) / np.maximum(rows, 1)
    rates = (positive + _PRIOR_ROWS * prior) / (rows + _PRIOR_ROWS)
    return dict(zip(names.tolist(), rates.tolist(), strict=True))


def _look_up_rates(rates: Mapping[int, float], groups: NDArray[np.int64], default: Floats) -> Floats:
    names, group_index = np.unique(groups, return_inverse=True)
    values = np.asarray([rates.get(name, np.nan) for name in names.tolist()], dtype=np.float64)[group_index]
    return np.where(np.isnan(values), default, values)


def _age_groups(rows: LabelledRows) -> NDArray[np.int64]:
    """Returns log2 of the age in minutes; -1 if unknown."""
    minutes = np.nan_to_num((rows.at - rows.last_at) / 60.0, nan=-1.0)
    powers = np.floor(np.log2(np.maximum(minutes, 0.0) + 1.0)).astype(np.int64)
    return np.where(minutes < 0, -1, powers)


def _hour_groups(rows: LabelledRows) -> NDArray[np.int64]:
    return rows.at // _HOUR_SECONDS % _WEEK_HOURS


def _entity_hour_groups(rows: LabelledRows) -> NDArray[np.int64]:
    return rows.entities * _WEEK_HOURS + _hour_groups(rows)
