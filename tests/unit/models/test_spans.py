"""Rolling folds: no label of training or selection rows overlaps later spans."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.models.spans import DAY_SECONDS, Fold, Span, end_of_labels, rolling_folds, training_span

HORIZONS = st.integers(60, 40 * DAY_SECONDS)


def spans(fold: Fold) -> tuple[Span, Span, Span, Span]:
    parts = (fold.training.fit_rows, fold.training.selection_rows, fold.training.all_rows, fold.test)
    assert all(isinstance(part, Span) for part in parts)
    return parts  # type: ignore[return-value]


def last_label(span: Span, horizon: int) -> int:
    """Returns the last time covered by a span's labels."""
    return span.end - 1 + horizon


@given(HORIZONS, st.integers(1, 60), st.integers(1, 30), st.integers(1, 8), st.integers(20_000, 22_000))
def test_no_training_label_overlaps_the_test(
    horizon: int, train_days: int, test_days: int, count: int, end_day: int
) -> None:
    days = max(train_days, -(-2 * horizon // DAY_SECONDS))

    folds = rolling_folds(
        end=end_day * DAY_SECONDS, train_days=days, test_days=test_days, count=count, gap_seconds=horizon
    )

    assert len(folds) == count
    for fold in folds:
        fitted, chosen, whole, test = spans(fold)
        assert last_label(fitted, horizon) < chosen.start
        assert last_label(whole, horizon) < test.start
        assert (whole.start, whole.end) == (fitted.start, chosen.end)
        assert fitted.start < fitted.end
        assert test.end - test.start == test_days * DAY_SECONDS
    tests = [spans(fold)[3] for fold in folds]
    assert all(before.end == after.start for before, after in itertools.pairwise(tests))
    assert tests[-1].end == end_day * DAY_SECONDS


def test_without_the_gap_training_labels_would_overlap_the_test() -> None:
    horizon = 28 * DAY_SECONDS

    (fold,) = rolling_folds(end=20_000 * DAY_SECONDS, train_days=84, test_days=7, count=1, gap_seconds=0)

    _, _, whole, test = spans(fold)
    assert last_label(whole, horizon) >= test.start


@given(st.integers(0, 10**9), HORIZONS)
def test_every_row_before_the_end_has_a_label(known_until: int, horizon: int) -> None:
    end = end_of_labels(known_until, horizon)

    assert end % DAY_SECONDS == 0
    assert end - 1 + horizon < known_until
    assert known_until - horizon - end < DAY_SECONDS


def test_a_span_is_half_open_in_sql() -> None:
    assert Span(5, 7).condition == "(_at >= 5 AND _at < 7)"
    assert training_span(end=8 * DAY_SECONDS, train_days=8, gap_seconds=60).selection_rows == Span(
        6 * DAY_SECONDS, 8 * DAY_SECONDS
    )
