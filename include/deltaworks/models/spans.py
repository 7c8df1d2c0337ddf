"""Rolling-origin folds: models are tested on days after their training span, with a gap of one horizon between them.

A label covers the time until the row's horizon. Training ends one horizon before the test begins, so no training label
overlaps the test. The same gap separates rows for fitting from rows for selection.

Times are Unix seconds, spans half-open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DAY_SECONDS = 86_400
#: Share of the training span, at its end, that is used to select algorithm and threshold.
SELECTION_SHARE = 0.25
#: Column with the time from which a row's features are available.
AT = "_at"


class RowSelection(Protocol):
    """A selection of rows of a labelled DataFrame."""

    @property
    def condition(self) -> str:
        """SQL condition on `_at` and other columns for the selected rows."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows in a time range; the end is exclusive."""

    start: int
    end: int

    @property
    def condition(self) -> str:
        """SQL condition on `_at` for the time range."""
        return f"({AT} >= {self.start} AND {AT} < {self.end})"


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """The training rows of one model.

    Args:
        fit_rows: rows to which candidates are fitted.
        selection_rows: later rows, on which candidate and threshold are selected.
        all_rows: both, including the gap between them.
    """

    fit_rows: RowSelection
    selection_rows: RowSelection
    all_rows: RowSelection


@dataclass(frozen=True, slots=True)
class Fold:
    """A training span and a later test span."""

    training: TrainingSpan
    test: RowSelection


def training_span(*, end: int, train_days: int, gap_seconds: int) -> TrainingSpan:
    """Returns the training span of a number of days that ends at a time.

    Args:
        gap_seconds: the gap between fitting rows and selection rows.
    """
    start = end - train_days * DAY_SECONDS
    chosen_from = end - round(train_days * DAY_SECONDS * SELECTION_SHARE)
    return TrainingSpan(Span(start, chosen_from - gap_seconds), Span(chosen_from, end), Span(start, end))


def rolling_folds(*, end: int, train_days: int, test_days: int, count: int, gap_seconds: int) -> Sequence[Fold]:
    """Returns `count` consecutive test spans ending at `end`, each with its training span, oldest first."""
    folds = []
    for number in range(count, 0, -1):
        test = Span(end - number * test_days * DAY_SECONDS, end - (number - 1) * test_days * DAY_SECONDS)
        training = training_span(end=test.start - gap_seconds, train_days=train_days, gap_seconds=gap_seconds)
        folds.append(Fold(training, test))
    return folds


def end_of_labels(known_until: int, horizon_seconds: int) -> int:
    """Returns the midnight (UTC) up to which every row has a label."""
    return (known_until - horizon_seconds) // DAY_SECONDS * DAY_SECONDS
