"""Folds of a rolling origin: a model is judged on days after those it was trained on, a gap of the horizon between.

The label of a row speaks of the time until its horizon. A row in training whose horizon reached into the days of the
test would tell the model of them, so training ends a horizon before the test begins; the same holds between the two
parts of training by which algorithm and threshold are chosen.

Instants are seconds since 1970, spans half-open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DAY_SECONDS = 86_400
#: The share of a training span, its end, by which algorithm and threshold are chosen.
SELECTION_SHARE = 0.25
#: The column of every row with the instant at which its features were there.
AT = "_at"


class RowSelection(Protocol):
    """Some of the rows of a frame."""

    @property
    def condition(self) -> str:
        """What they meet, as SQL over `_at` and the columns of a row."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows from one instant up to, but not including, another."""

    start: int
    end: int

    @property
    def condition(self) -> str:
        """What its rows meet, as SQL."""
        return f"({AT} >= {self.start} AND {AT} < {self.end})"


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """What one model is trained on: fitted and compared on parts of it first, then fitted to all of it.

    Args:
        fitted: on which candidates are fitted.
        chosen: later rows, on which the best candidate and its threshold are chosen.
        whole: both, and what lies between them.
    """

    fit_rows: RowSelection
    selection_rows: RowSelection
    all_rows: RowSelection


@dataclass(frozen=True, slots=True)
class Fold:
    """A span to train on and a later one to test on."""

    training: TrainingSpan
    test: RowSelection


def training_span(*, end: int, train_days: int, gap_seconds: int) -> TrainingSpan:
    """The training of so many days up to an instant by which the labels of its rows are there.

    Args:
        gap_seconds: what lies between the rows candidates are fitted on and those they are compared on.
    """
    start = end - train_days * DAY_SECONDS
    chosen_from = end - round(train_days * DAY_SECONDS * SELECTION_SHARE)
    return TrainingSpan(Span(start, chosen_from - gap_seconds), Span(chosen_from, end), Span(start, end))


def rolling_folds(*, end: int, train_days: int, test_days: int, count: int, gap_seconds: int) -> Sequence[Fold]:
    """So many tests of equal length, one after another up to `end`, each with the training before it; oldest first."""
    folds = []
    for number in range(count, 0, -1):
        test = Span(end - number * test_days * DAY_SECONDS, end - (number - 1) * test_days * DAY_SECONDS)
        training = training_span(end=test.start - gap_seconds, train_days=train_days, gap_seconds=gap_seconds)
        folds.append(Fold(training, test))
    return folds


def end_of_labels(known_until: int, horizon_seconds: int) -> int:
    """The midnight (UTC) up to which every row has a label, where states are on record until `known_until`."""
    return (known_until - horizon_seconds) // DAY_SECONDS * DAY_SECONDS
