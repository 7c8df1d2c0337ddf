"""Alarms and budget thresholds match a row-by-row scan."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.models.alarms import alarm_budget, alarm_metrics, alarm_rows, lowest_threshold
from deltaworks.models.spans import DAY_SECONDS

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
