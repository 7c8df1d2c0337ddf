"""Evaluates a model on rolling folds: trained and tuned on each fold's training span, tested once on later days.

Algorithm and threshold are selected on the end of the training span; the test span is used for metrics only. Thresholds
of baselines are selected in the same way.

A model's gain over a baseline has a confidence interval by block bootstrap. Rows close in time are correlated, so
blocks are resampled instead of rows: days, or entities if horizons exceed a day. Both scores are evaluated on the same
resamples (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993: percentile intervals).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltaworks.control.records.model import FoldReport, Gain, ModelMetrics
from deltaworks.models.alarms import (
    Flags,
    Floats,
    Instants,
    RankedScores,
    alarm_budget,
    alarm_metrics,
    average_precision,
    brier_score,
    calibration_table,
    lowest_threshold,
)
from deltaworks.models.baselines import Baseline, LabelledRows, fit_baseline
from deltaworks.models.fitting import LABEL, FittedModel, fit
from deltaworks.models.frames import LabelledFrame
from deltaworks.models.spans import DAY_SECONDS, Fold, RowSelection, Span, TrainingSpan
from deltaworks.specs.models import Algorithm, ModelSpec

# Block bootstrap.

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


# Evaluation of folds.

#: Name of the scores of the model with all feature groups.
MODEL: Final = "model"
#: Digits of stored metrics; a repeated training is compared at this precision.
DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class SelectedModel:
    """The best candidate, fitted to the full training span, with its threshold."""

    model: FittedModel
    threshold: float


@dataclass(frozen=True, slots=True)
class _TestScores:
    """Test scores and thresholds by model or baseline name."""

    rows: LabelledRows
    scores: Mapping[str, Floats]
    thresholds: Mapping[str, float]


def select_model(
    frame: LabelledFrame, training: TrainingSpan, model: ModelSpec, columns: Sequence[str]
) -> SelectedModel | None:
    """Selects the best algorithm on the end of the training span and fits it to the full span.

    Returns None if the rows for fitting or for selection have one label only.
    """
    best: tuple[float, Algorithm, float] | None = None
    for algorithm in model.algorithms:
        fitted = _fit_rows(frame, training.fit_rows, algorithm, columns)
        if fitted is None:
            return None
        rows, scores = frame.collect_labelled(training.selection_rows, {MODEL: fitted})
        area = average_precision(rows.labels, scores[MODEL])
        if math.isnan(area):
            return None
        if best is None or area > best[0]:
            best = (area, algorithm, _select_threshold(rows, scores[MODEL], model))
    final = None if best is None else _fit_rows(frame, training.all_rows, best[1], columns)
    return None if best is None or final is None else SelectedModel(final, best[2])


def _fit_rows(
    frame: LabelledFrame, rows: RowSelection, algorithm: Algorithm, columns: Sequence[str]
) -> FittedModel | None:
    part = frame.filter_rows(rows)
    labels = {bool(row[0]) for row in part.select(LABEL).distinct().collect()}
    return fit(algorithm, part, columns) if len(labels) == 2 else None


def _select_threshold(rows: LabelledRows, scores: Floats, model: ModelSpec) -> float:
    budget = alarm_budget(rows.entities, rows.at, alarms_per_day=model.alarms_per_day)
    return lowest_threshold(rows.entities, rows.at, scores, max_alarms=budget, quiet_seconds=model.horizon_seconds)


def group_columns(model: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Returns the columns of each feature group with those of all groups before it. The last group is named `model`."""
    cumulative: dict[str, tuple[str, ...]] = {}
    columns: tuple[str, ...] = ()
    for name, group in model.feature_groups.items():
        columns += group
        cumulative[name] = columns
    *parts, _ = cumulative
    return {**{name: cumulative[name] for name in parts}, MODEL: columns}


def evaluate_fold(frame: LabelledFrame, fold: Fold, model: ModelSpec) -> FoldReport:
    """Trains and tests on one fold. The result has no gain and no scores if a span has rows with one label only."""
    training, _ = frame.collect_labelled(fold.training.all_rows)
    test, _ = frame.collect_labelled(fold.test)
    report = FoldReport(
        train_from=_rows_start(fold.training.all_rows),
        train_to=_rows_end(fold.training.all_rows),
        test_from=_rows_start(fold.test),
        test_to=_rows_end(fold.test),
        train_rows=len(training),
        train_positive=int(training.labels.sum()),
        test_rows=len(test),
        test_positive=int(test.labels.sum()),
    )
    if report.test_positive in (0, report.test_rows):
        return report
    selected = {
        name: select_model(frame, fold.training, model, columns) for name, columns in group_columns(model).items()
    }
    if any(choice is None for choice in selected.values()):
        return report
    models = {name: choice for name, choice in selected.items() if choice is not None}
    rows, scores = frame.collect_labelled(fold.test, {name: choice.model for name, choice in models.items()})
    thresholds = {name: choice.threshold for name, choice in models.items()}
    fit_rows, _ = frame.collect_labelled(fold.training.fit_rows)
    selection_rows, _ = frame.collect_labelled(fold.training.selection_rows)
    for baseline in model.baselines:
        thresholds[baseline] = _select_threshold(
            selection_rows, _baseline_scores(baseline, fit_rows, selection_rows), model
        )
        scores[baseline] = _baseline_scores(baseline, training, rows)
    test_scores = _TestScores(rows, scores, thresholds)
    return report.replace(
        algorithm=models[MODEL].model.algorithm,
        scores={name: _score_metrics(test_scores, name, model) for name in scores},
        gain=_gain(test_scores, MODEL, _best_baseline(test_scores, model), model),
        adds=_group_gains(test_scores, list(models), model),
    )


def _baseline_scores(name: Baseline, training: LabelledRows, rows: LabelledRows) -> Floats:
    return fit_baseline(name, training)(rows)


def _score_metrics(test_scores: _TestScores, name: str, model: ModelSpec) -> ModelMetrics:
    rows, scores, threshold = test_scores.rows, test_scores.scores[name], test_scores.thresholds[name]
    alarms = alarm_metrics(
        rows.entities,
        rows.at,
        scores,
        rows.labels,
        rows.next_at,
        threshold=threshold,
        quiet_seconds=model.horizon_seconds,
    )
    return ModelMetrics(
        pr_auc=_round_or_none(average_precision(rows.labels, scores)),
        brier_score=_round_or_none(brier_score(rows.labels, scores)),
        threshold=_round_or_none(threshold),
        alarms=alarms.alarms,
        alarm_precision=_round_or_none(alarms.precision),
        lead_seconds=alarms.median_lead_seconds,
        calibration=tuple(
            (part.rows, round(part.mean_score, DIGITS), round(part.positive_share, DIGITS))
            for part in calibration_table(rows.labels, scores)
        ),
    )


def _best_baseline(test_scores: _TestScores, model: ModelSpec) -> str:
    return max(model.baselines, key=lambda name: average_precision(test_scores.rows.labels, test_scores.scores[name]))


def _group_gains(test_scores: _TestScores, names: Sequence[str], model: ModelSpec) -> dict[str, Gain]:
    """Returns the gain of adding each feature group to the groups before it."""
    groups = [*model.feature_groups]
    return {
        group: _gain(test_scores, name, before, model)
        for group, name, before in zip(groups[1:], names[1:], names[:-1], strict=True)
    }


def _gain(test_scores: _TestScores, name: str, over: str, model: ModelSpec) -> Gain:
    interval = area_gain(
        test_scores.rows.labels,
        test_scores.scores[name],
        test_scores.scores[over],
        bootstrap_blocks(test_scores.rows, model),
    )
    return Gain(
        baseline=over,
        value=_round_finite(interval.value),
        low=_round_finite(interval.low),
        high=_round_finite(interval.high),
    )


def bootstrap_blocks(rows: LabelledRows, model: ModelSpec) -> Instants:
    """Returns the bootstrap block of each row: its day, or its entity if horizons exceed a day."""
    if model.horizon_seconds > DAY_SECONDS:
        return rows.entities
    days: Instants = rows.at // DAY_SECONDS
    return days


def shortfall_reason(fold: FoldReport, *, gain: float) -> str:
    """Returns why a fold does not support publishing the model; empty if it does."""
    if fold.gain is None:
        return ""
    if not fold.gain.value >= gain:
        return f"gains {fold.gain.value:.3f} over {fold.gain.baseline}, less than {gain:g}"
    if not fold.gain.low > 0:
        return (
            f"gains {fold.gain.value:.3f} over {fold.gain.baseline}, not significant: lower bound {fold.gain.low:.3f}"
        )
    return ""


def _round_or_none(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, DIGITS)


def _round_finite(value: float) -> float:
    return round(value, DIGITS) if math.isfinite(value) else value


def iso_time(seconds: int) -> str:
    """Formats Unix seconds as ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _rows_start(rows: RowSelection) -> str:
    return iso_time(rows.start) if isinstance(rows, Span) else rows.condition


def _rows_end(rows: RowSelection) -> str:
    return iso_time(rows.end) if isinstance(rows, Span) else rows.condition
