"""Areas, calibration and intervals match slow implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deltaworks.models.alarms import RankedScores, average_precision, brier_score, calibration_table
from deltaworks.models.evaluation import area_gain

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
