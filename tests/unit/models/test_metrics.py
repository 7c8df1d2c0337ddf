"""Areas, calibration, intervals, alarms and budgets match slow implementations; when a model is published."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deltaworks.control.records.model import FoldReport, Gain
from deltaworks.models.alarms import (
    RankedScores,
    alarm_budget,
    alarm_metrics,
    alarm_rows,
    average_precision,
    brier_score,
    calibration_table,
    lowest_threshold,
)
from deltaworks.models.baselines import LabelledRows
from deltaworks.models.evaluation import area_gain, bootstrap_blocks, group_columns, shortfall_reason
from deltaworks.models.spans import DAY_SECONDS
from deltaworks.specs.models import ModelSpec

SCORED = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30)


def slow_area(labels: list[bool], scores: list[float], weights: list[int]) -> float:
    """Computes the area by trying every threshold."""
    rows = [(label, score) for label, score, weight in zip(labels, scores, weights, strict=True) for _ in range(weight)]
    positive = sum(label for label, _ in rows)
    if not positive:
        return math.nan
    area = recall_before = 0.0
    for threshold in sorted(set(scores), reverse=True):
        above = [label for label, score in rows if score >= threshold]
        if above:
            recall = sum(above) / positive
            area += (recall - recall_before) * sum(above) / len(above)
            recall_before = recall
    return area


@given(SCORED)
def test_the_area_matches_a_scan_of_thresholds(rows: list[tuple[bool, int, int]]) -> None:
    labels, scores, weights = map(list, zip(*rows, strict=True))
    ranked = RankedScores(np.asarray(labels), np.asarray(scores, dtype=float))

    for counts in ([1] * len(rows), weights):
        area = ranked.average_precision(np.asarray(counts, dtype=float))
        expected = slow_area(labels, scores, counts)
        assert math.isnan(area) == math.isnan(expected)
        assert math.isnan(area) or area == pytest.approx(expected)


@given(SCORED, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(rows: list[tuple[bool, int, int]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    areas = []
    for order in (rows, shuffled):
        labels, scores, _ = zip(*order, strict=True)
        areas.append(average_precision(np.asarray(labels), np.asarray(scores, dtype=float)))

    assert areas[0] == pytest.approx(areas[1], nan_ok=True)


def test_a_perfect_score_has_an_area_of_one_and_a_constant_one_the_share_of_positive_rows() -> None:
    labels = np.asarray([True, False, False, True])

    assert average_precision(labels, np.asarray([0.9, 0.1, 0.2, 0.8])) == 1.0
    assert average_precision(labels, np.ones(4)) == 0.5


@given(SCORED)
def test_calibration_has_every_row_once_from_the_lowest_score_up(rows: list[tuple[bool, int, int]]) -> None:
    labels = np.asarray([label for label, _, _ in rows])
    scores = np.asarray([score / 5 for _, score, _ in rows])

    bins = calibration_table(labels, scores, bins=4)

    assert sum(part.rows for part in bins) == len(rows)
    assert sum(part.rows * part.positive_share for part in bins) == pytest.approx(labels.sum())
    assert [part.mean_score for part in bins] == sorted(part.mean_score for part in bins)
    assert max(part.rows for part in bins) - min(part.rows for part in bins) <= 1


def test_the_brier_score_is_the_mean_squared_error() -> None:
    assert brier_score(np.asarray([True, False]), np.asarray([0.5, 0.1])) == pytest.approx((0.25 + 0.01) / 2)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=30), st.integers(1, 5))
def test_the_interval_matches_resampling_copied_blocks(rows: list[tuple[bool, float, float]], days: int) -> None:
    labels, ours, theirs = (np.asarray(column) for column in zip(*rows, strict=True))
    assume(labels.any())
    blocks = np.arange(len(rows)) % days
    draws = np.random.default_rng(3)
    gains = []
    present = len(set(blocks.tolist()))
    for _ in range(50):
        places = np.concatenate([np.flatnonzero(blocks == block) for block in draws.integers(0, present, present)])
        gain = average_precision(labels[places], ours[places]) - average_precision(labels[places], theirs[places])
        if not math.isnan(gain):
            gains.append(gain)

    interval = area_gain(labels, ours, theirs, blocks, resamples=50, seed=3)

    assert interval.value == pytest.approx(average_precision(labels, ours) - average_precision(labels, theirs))
    if gains:
        assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(gains, [0.025, 0.975])))
    assert interval == area_gain(labels, ours, theirs, blocks, resamples=50, seed=3)


def test_correlated_days_widen_the_interval() -> None:
    # On half of the days the score is always right, on the others always wrong: a day is one sample.
    random = np.random.default_rng(1)
    days = np.repeat(np.arange(20), 20)
    labels = np.tile(np.asarray([True, False]), 200)
    right = np.repeat(random.permutation(np.tile([True, False], 10)), 20)
    ours, theirs = np.where(right == labels, 0.9, 0.1), np.full(400, 0.5)

    by_day = area_gain(labels, ours, theirs, days)
    by_row = area_gain(labels, ours, theirs, np.arange(400))

    assert by_day.high - by_day.low > 2 * (by_row.high - by_row.low)


def model(**more: object) -> ModelSpec:
    declared: dict[str, object] = {
        "name": "slow",
        "features": "hours",
        "timestamp": "hour",
        "entity": "shop",
        "feature_groups": {"level": ["orders"], "trend": ["slope"], "usual": ["over"]},
        "label": "models/slow.sql",
        "reads": ["hours"],
        "horizon_minutes": 60,
    }
    return ModelSpec.model_validate(declared | more)


def fold(value: float, low: float) -> FoldReport:
    spans = dict.fromkeys(("train_from", "train_to", "test_from", "test_to"), "")
    counts = dict.fromkeys(("train_rows", "train_positive", "test_rows", "test_positive"), 1)
    return FoldReport(**spans, **counts, gain=Gain(baseline="seasonal", value=value, low=low, high=1.0))  # type: ignore[arg-type]


def test_feature_groups_are_cumulative() -> None:
    assert group_columns(model()) == {
        "level": ("orders",),
        "trend": ("orders", "slope"),
        "model": ("orders", "slope", "over"),
    }
    assert group_columns(model(feature_groups={"level": ["orders"]})) == {"model": ("orders",)}


@pytest.mark.parametrize(
    ("value", "low", "reason"),
    [
        (0.05, 0.01, ""),
        (0.02, 0.001, ""),
        (0.019, 0.01, "less than 0.02"),
        (0.3, 0.0, "not significant"),
        (-0.1, -0.2, "less than 0.02"),
        (float("nan"), float("nan"), "less than 0.02"),
    ],
)
def test_a_fold_needs_a_large_and_significant_gain(value: float, low: float, reason: str) -> None:
    said = shortfall_reason(fold(value, low), gain=0.02)

    assert (reason in said) if reason else said == ""


def test_bootstrap_blocks_are_days_or_entities_for_long_horizons() -> None:
    rows = LabelledRows(
        np.asarray([7, 8]), np.asarray([5, DAY_SECONDS + 5]), np.ones(2, dtype=bool), np.zeros(2), np.zeros(2)
    )

    assert bootstrap_blocks(rows, model()).tolist() == [0, 1]
    assert bootstrap_blocks(rows, model(horizon_minutes=None, horizon_days=14)).tolist() == [7, 8]


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 8)),
    min_size=1,
    max_size=40,
    unique_by=lambda row: row[:2],
)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    entities, at, scores = zip(*rows, strict=True)
    return np.asarray(entities, dtype=np.int64), np.asarray(at, dtype=np.int64), np.asarray(scores, dtype=float)


def slow_alarms(rows: list[tuple[int, int, int]], threshold: float, quiet: int) -> list[tuple[int, int]]:
    last: dict[int, int] = {}
    begun = []
    for entity, at, score in sorted(rows):
        if score >= threshold and (entity not in last or at - last[entity] >= quiet):
            last[entity] = at
            begun.append((entity, at))
    return begun


@given(ROWS, st.integers(0, 9), st.integers(1, 20))
def test_alarms_match_a_row_by_row_scan(rows: list[tuple[int, int, int]], threshold: int, quiet: int) -> None:
    entities, at, scores = columns(rows)

    begun = alarm_rows(entities, at, scores, threshold=threshold, quiet_seconds=quiet)

    assert [(int(entities[row]), int(at[row])) for row in begun] == slow_alarms(rows, threshold, quiet)


@given(ROWS, st.integers(0, 12), st.integers(1, 20))
def test_the_threshold_is_the_lowest_within_the_budget(rows: list[tuple[int, int, int]], most: int, quiet: int) -> None:
    entities, at, scores = columns(rows)

    threshold = lowest_threshold(entities, at, scores, max_alarms=most, quiet_seconds=quiet)

    assert len(slow_alarms(rows, threshold, quiet)) <= most
    lower = [score for score in sorted(set(scores.tolist()), reverse=True) if score < threshold]
    if lower:
        assert len(slow_alarms(rows, lower[0], quiet)) > most


def test_the_budget_counts_days_and_entities() -> None:
    entities = np.asarray([1, 1, 1, 2])
    at = np.asarray([0, 5, DAY_SECONDS, 0])

    assert alarm_budget(entities, at, alarms_per_day=2) == 6


def test_metrics_count_alarms_and_not_rows() -> None:
    entities, at = np.zeros(4, dtype=np.int64), np.asarray([0, 60, 1200, 2400])
    scores, labels = np.asarray([0.9, 0.9, 0.8, 0.1]), np.asarray([True, True, False, False])
    next_at = np.asarray([300.0, 300.0, np.nan, np.nan])

    figures = alarm_metrics(entities, at, scores, labels, next_at, threshold=0.5, quiet_seconds=900)

    assert (figures.alarms, figures.precision, figures.median_lead_seconds) == (2, 0.5, 300.0)
    none = alarm_metrics(entities, at, scores, labels, next_at, threshold=2.0, quiet_seconds=900)
    assert (none.alarms, none.precision, none.median_lead_seconds) == (0, None, None)
