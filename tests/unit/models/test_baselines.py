"""Baselines: positive rates by state and time, shrunk towards larger groups."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.models.baselines import LabelledRows, fit_baseline

HOUR = 3_600
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 400), st.booleans(), st.one_of(st.none(), st.integers(0, 10))),
    min_size=1,
    max_size=40,
)
Plain = tuple[int, int, bool, int | None]


def labelled(rows: list[Plain]) -> LabelledRows:
    at = np.asarray([hour * HOUR for _, hour, _, _ in rows], dtype=np.int64)
    ages = np.asarray([np.nan if age is None else age * 60.0 for *_, age in rows])
    return LabelledRows(
        np.asarray([entity for entity, *_ in rows], dtype=np.int64),
        at,
        np.asarray([label for _, _, label, _ in rows]),
        np.full(len(rows), np.nan),
        at - ages,
    )


def rate(labels: list[bool], prior: float) -> float:
    return (sum(labels) + 20 * prior) / (len(labels) + 20)


@given(ROWS, ROWS)
def test_persistence_is_the_rate_by_the_age_of_the_state(training: list[Plain], rows: list[Plain]) -> None:
    def step(age: int | None) -> int:
        return -1 if age is None else (age + 1).bit_length() - 1

    groups: dict[int, list[bool]] = defaultdict(list)
    for *_, label, age in training:
        groups[step(age)].append(label)
    overall = sum(label for _, _, label, _ in training) / len(training)

    scores = fit_baseline("persistence", labelled(training))(labelled(rows))

    expected = [rate(groups[step(age)], overall) if step(age) in groups else overall for *_, age in rows]
    assert scores == pytest.approx(expected)


@given(ROWS, ROWS)
def test_seasonal_is_the_rate_of_an_entity_at_an_hour_of_the_week(training: list[Plain], rows: list[Plain]) -> None:
    hours: dict[int, list[bool]] = defaultdict(list)
    own: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for entity, hour, label, _ in training:
        hours[hour % 168].append(label)
        own[entity, hour % 168].append(label)
    overall = sum(label for _, _, label, _ in training) / len(training)

    def expected(entity: int, hour: int) -> float:
        of_hour = rate(hours[hour % 168], overall) if hour % 168 in hours else overall
        key = (entity, hour % 168)
        return rate(own[key], of_hour) if key in own else of_hour

    scores = fit_baseline("seasonal", labelled(training))(labelled(rows))

    assert scores == pytest.approx([expected(entity, hour) for entity, hour, _, _ in rows])
